"""What all figures share: widths, letters, names, and how they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from offbeat.experiment.partition_heatmap import format_of, save_figure
from offbeat.results.series import Series

COLUMN, PAGE = 3.4, 7.0  # inches: a column of two, and both
SMALLEST = 7.0  # points
LONGEST = 28  # letters of a name that are printed
LINES = {"solid": "-", "dashed": (0, (5, 2)), "dotted": (0, (1.2, 1.6)), "dashdot": (0, (6, 2, 1.2, 2))}
LOOK: dict[str, Any] = {
    "font.size": 8.0,
    "axes.labelsize": 8.0,
    "axes.titlesize": 8.0,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "legend.fontsize": SMALLEST,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # letters that publishers' tools can read
    "svg.hashsalt": "offbeat",  # the same figure is the same file
}


def new(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    return Figure(figsize=(width, height), layout="constrained")


def print_to(path: Path, draw: Callable[[], Any]) -> None:
    """Whole or not at all; the ending of the path says which format."""
    import matplotlib

    format_of(path)  # before anything is drawn
    with matplotlib.rc_context(LOOK):  # type: ignore[arg-type,unused-ignore]
        save_figure(draw(), path, dpi=200)


def plain(text: str, longest: int | None = None) -> str:
    """A name is not a formula, and a very long one is cut."""
    cut = text if longest is None or len(text) <= longest else text[: longest - 1] + "…"
    return cut.replace("$", r"\$")


def columns(series: Series, width: float) -> int:
    """How many names fit beside each other in a legend."""
    longest = max(min(len(method.name), LONGEST) for method in series.methods)
    letter = 0.55 * SMALLEST / 72  # inches
    count = len(series.methods)
    most = max(1, min(count, int(width / ((longest + 8) * letter))))
    return -(-count // -(-count // most))  # as many rows, evenly filled


def height_of(series: Series, width: float) -> float:
    """Inches that a legend takes."""
    rows = -(-len(series.methods) // columns(series, width))
    return 0.1 + rows * 1.5 * SMALLEST / 72
