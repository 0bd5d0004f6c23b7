"""Check a built site: links and anchors inside it lead somewhere, and nothing is loaded from the network.

Run: python docs/check_site.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements that a browser loads by itself, and the attribute with their address.
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """The anchors, links and resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element is, links to or loads."""
        given = {key: value for key, value in attrs if value is not None}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in LOADED and LOADED[tag] in given:
            self.resources.append(given[LOADED[tag]])


def problems(site: Path) -> list[str]:
    """Return every broken link and every resource from the network, by page."""
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    pages = {path.resolve(): Page(path) for path in files}
    found = [f"{site} has no pages"] if not pages else []
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for address in page.resources:
            if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
                found.append(f"{where} loads {address}")
            elif not urlsplit(address).scheme and not _file(path, address).exists():
                found.append(f"{where} loads {address}, which does not exist")
        found += [f"{where} links to {link}" for link in page.links if _is_broken(path, link, pages)]
    return [*found, *_loaded_by_styles(site)]


def _file(page: Path, address: str) -> Path:
    return (page.parent / unquote(urlsplit(address).path)).resolve()


def _is_broken(page: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or link.startswith("//"):
        return False
    target = _file(page, link) if parts.path else page
    if target not in pages:
        return not target.exists()
    return bool(parts.fragment) and unquote(parts.fragment) not in pages[target].anchors


def _loaded_by_styles(site: Path) -> list[str]:
    """Return style sheets that import from, or have fonts or images on, the network."""
    return [
        f"{path.relative_to(site)} loads from the network"
        for path in sorted(site.rglob("*.css"))
        if any(word in path.read_text("utf-8") for word in ("url(http", 'url("http', "url('http", "url(//"))
    ]


if __name__ == "__main__":
    broken = problems(Path(sys.argv[1]))
    print(
        "\n".join(broken) or "every link inside the site leads somewhere; nothing is loaded from the network"
    )
    sys.exit(bool(broken))
