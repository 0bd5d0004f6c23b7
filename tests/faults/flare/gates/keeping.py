"""Keeps what a site forgets and an audit needs: the question of each release, its mask and its noise.

Without them nobody can tell from the sites' messages what was in their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from capedjica.mechanisms.messages import encode
from capedjica.mechanisms.site import answering as sites


def keep(folder: Path, put: Callable[[object, str, object], None] = setattr) -> None:
    """Have every site of this process write into ``folder/SITE``, before its answer leaves."""
    release, draw, use = sites.Site._release, sites.Site._draw, sites._Block.use
    # A site makes one release at a time: it draws the noise for the mask that it used last.
    places: dict[str, Path] = {}

    def kept_release(self, ask):
        answer = release(self, ask)
        _write(folder / self.name / f"{ask.block}-{ask.slot}.ask", encode(ask))
        return answer

    def kept_use(self, slot):
        name, mask = self._site.name, use(self, slot)
        places[name] = folder / name / f"{self.begin.block}-{slot}"
        _write(places[name].with_suffix(".mask"), mask.tobytes())
        return mask

    def kept_draw(self, scale, size):
        noise = draw(self, scale, size)
        _write(places[self.name].with_suffix(".noise"), noise.tobytes())
        return noise

    put(sites.Site, "_release", kept_release)
    put(sites.Site, "_draw", kept_draw)
    put(sites._Block, "use", kept_use)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_bytes(content)
