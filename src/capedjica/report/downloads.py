"""Embedding of tables and pictures in a page as ``data:`` URLs."""

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

# Larger files are not embedded in the page.
MOST_INSIDE: Final = 3_000_000


@dataclass(frozen=True)
class Download:
    """A file embedded in a page: its name, and its content as a ``data:`` URL."""

    name: str
    address: str


@dataclass(frozen=True)
class Figure:
    """A figure of a report, either a picture or a drawing.

    Attributes
    ----------
    alt : str
        Text alternative, for readers who cannot see the figure.
    caption : str
        Text below the figure.
    picture : str
        ``data:`` URL of a picture.
    drawing : str
        Drawing in SVG.
    numbers : Download, optional
        The numbers shown.
    marks : tuple of str
        Labels below a picture, evenly spaced.
    sides : bool
        Whether each part is marked with L on its left and R on its right.
    """

    alt: str
    caption: str = ""
    picture: str = ""
    drawing: str = ""
    numbers: Download | None = None
    marks: tuple[str, ...] = ()
    sides: bool = False


def address(content: bytes, kind: str) -> str:
    """Return content as a ``data:`` URL of the media type ``kind``."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Download:
    """Return a table as a CSV download."""
    return Download(name, address(csv_text(columns, rows).encode(), "text/csv"))


def tsv(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Download:
    """Return a table as a download of tab-separated values, as in BIDS."""
    return Download(name, address(csv_text(columns, rows, "\t").encode(), "text/tab-separated-values"))


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ",") -> str:
    """Return a table as CSV text."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_shown(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _shown(cell: Any) -> Any:
    return f"{cell:.8g}" if isinstance(cell, float | np.floating) else cell


def png(pixels: NDArray[np.uint8]) -> str:
    """Return pixels (height, width, 4) as the ``data:`` URL of a PNG.

    Images of at most 256 colours are stored with a palette: the same pixels in a quarter of the size.
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
