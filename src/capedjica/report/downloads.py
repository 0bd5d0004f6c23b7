"""Numbers and pictures inside a page, as ``data:`` addresses."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

# What is larger stays beside the page.
MOST_INSIDE: Final = 3_000_000


@dataclass(frozen=True)
class Download:
    """A file inside a page: its name, and its content as an address."""

    name: str
    address: str


@dataclass(frozen=True)
class Figure:
    """Something to look at.

    Attributes
    ----------
    alt : str
        The same in words, for those who cannot see it.
    caption : str
        What stands below.
    picture : str
        Address of a picture; or
    drawing : str
        a drawing in SVG.
    numbers : Download, optional
        What it shows, as numbers.
    marks : tuple of str
        Words below a picture, evenly spread.
    sides : bool
        Whether L and R stand at the left and the right of each part.
    """

    alt: str
    caption: str = ""
    picture: str = ""
    drawing: str = ""
    numbers: Download | None = None
    marks: tuple[str, ...] = ()
    sides: bool = False


def address(content: bytes, kind: str) -> str:
    """Return content as an address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Download:
    """Return a table as CSV."""
    return Download(name, address(csv_text(columns, rows).encode(), "text/csv"))


def tsv(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Download:
    """Return a table as BIDS has them, with tabs."""
    return Download(name, address(csv_text(columns, rows, "\t").encode(), "text/tab-separated-values"))


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ",") -> str:
    """Return a table as text that a spreadsheet opens."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_shown(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _shown(cell: Any) -> Any:
    return f"{cell:.8g}" if isinstance(cell, float | np.floating) else cell


def png(pixels: NDArray[np.uint8]) -> str:
    """Return pixels (height, width, 4) as the address of a picture.

    Pictures of at most 256 colours get a palette: the same pixels in a quarter of the bytes.
    """
    buffer, about = io.BytesIO(), PngImagePlugin.PngInfo()
    about.add_text("Software", "capedjica")
    flat = np.ascontiguousarray(pixels).view(np.uint32).reshape(pixels.shape[:2])
    colours, places = np.unique(flat, return_inverse=True)
    if len(colours) > 256:
        Image.fromarray(pixels, "RGBA").save(buffer, "png", pnginfo=about)
    else:
        palette = colours.view(np.uint8).reshape(-1, 4)
        image = Image.fromarray(places.reshape(flat.shape).astype(np.uint8), "P")
        image.putpalette(np.ascontiguousarray(palette[:, :3]).tobytes())
        image.save(buffer, "png", pnginfo=about, transparency=palette[:, 3].tobytes(), optimize=True)
    return address(buffer.getvalue(), "image/png")
