"""Sizes, fonts, line styles and file formats that all figures share."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from offbeat.core.errors import ConfigError
from offbeat.engine import write_atomically
from offbeat.results.series import FigureSeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# supported formats, each with the metadata that keeps the current time out of the file: equal figures are equal files
UNDATED_METADATA: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
COLUMN_WIDTH, PAGE_WIDTH = 3.4, 7.0  # inches, of a two-column paper
MIN_FONT_SIZE = 7.0  # points
MAX_NAME_LENGTH = 28  # letters of a method's name in a legend
LINE_STYLES: dict[str, str | tuple[float, tuple[float, ...]]] = {
    "solid": "-",
    "dashed": (0, (5, 2)),
    "dotted": (0, (1.2, 1.6)),
    "dashdot": (0, (6, 2, 1.2, 2)),
}
RC_PARAMS = {
    "font.size": 8.0,
    "axes.labelsize": 8.0,
    "axes.titlesize": 8.0,
    "xtick.labelsize": MIN_FONT_SIZE,
    "ytick.labelsize": MIN_FONT_SIZE,
    "legend.fontsize": MIN_FONT_SIZE,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # TrueType: publishers' tools reject Type 3 fonts
    "svg.hashsalt": "offbeat",  # makes SVG files reproducible
}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    return Figure(figsize=(width, height), layout="constrained")


def print_figure(path: Path, draw: Callable[[], Figure]) -> None:
    """Draw a figure in the shared style and write it at print resolution."""
    import matplotlib

    figure_format(path)  # refuses an unknown format before anything is drawn
    with matplotlib.rc_context(RC_PARAMS):  # type: ignore[arg-type,unused-ignore]
        write_figure(draw(), path, dpi=200)


def write_figure(figure: Figure, path: Path, dpi: float = 130) -> None:
    """Write a figure atomically; the suffix of the path selects the format."""
    file_format = figure_format(path)
    buffer = BytesIO()
    figure.savefig(buffer, dpi=dpi, format=file_format, metadata=UNDATED_METADATA[file_format])
    write_atomically(path, buffer.getvalue())


def figure_format(path: Path) -> str:
    """Return the format that the suffix of a path selects."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in UNDATED_METADATA:
        raise ConfigError(f"{path}: a figure's file name must end in .pdf, .svg or .png")
    return suffix


def escape_text(text: str, max_length: int | None = None) -> str:
    """Shorten a name and escape `$`, which would start a formula."""
    short = text if max_length is None or len(text) <= max_length else text[: max_length - 1] + "…"
    return short.replace("$", r"\$")


def legend_columns(series: FigureSeries, width: float) -> int:
    """Return the number of legend entries per row that fit into `width` inches."""
    longest = max(min(len(method.name), MAX_NAME_LENGTH) for method in series.methods)
    letter_width = 0.55 * MIN_FONT_SIZE / 72  # inches
    count = len(series.methods)
    columns = max(1, min(count, int(width / ((longest + 8) * letter_width))))
    rows = -(-count // columns)
    return -(-count // rows)  # fills the rows evenly


def legend_height(series: FigureSeries, width: float) -> float:
    """Return the height of the legend in inches."""
    rows = -(-len(series.methods) // legend_columns(series, width))
    return 0.1 + rows * 1.5 * MIN_FONT_SIZE / 72
