"""How old updates are: a row a method, so that ten can be read. Box: the middle half; whiskers: 5 % to 95 %."""

from __future__ import annotations

from typing import Any

from offbeat.metrics.quantiles import Spread, spread
from offbeat.results.figures.figure_style import plain
from offbeat.results.series import Series

ROW = 0.19  # inches
FEW = 4  # rows at least, so that one is no wall
LONGEST = 16  # letters of a name
TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def height(series: Series) -> float:
    return 1.0 + ROW * len(series.methods)


def draw(axes: Any, series: Series) -> None:
    from numpy import expm1, log1p

    found = [spread(method.staleness) for method in series.methods]
    for row, (method, of) in enumerate(zip(series.methods, found, strict=True)):
        if of is not None:
            _row(axes, row, of, method.style.colour)
    axes.set_xscale("function", functions=(log1p, expm1))
    largest = max((of.largest for of in found if of is not None), default=1)
    room = expm1(log1p(max(1, largest)) * 1.06)
    axes.set_xlim(-0.15, room)
    axes.set_xticks([tick for tick in TICKS if tick <= room], minor=False)
    axes.set_xticklabels([str(tick) for tick in TICKS if tick <= room])
    axes.set_yticks(range(len(found)), [plain(method.name, LONGEST) for method in series.methods])
    axes.set_ylim(max(len(found), FEW) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("staleness (versions)")
    title = "line: 5 % to 95 % of updates, box: the middle half,\n| median, ○ mean, × largest"
    axes.set_title(title, fontsize=7, loc="right", color="0.3")  # it may reach over the names
    axes.grid(axis="x", alpha=0.25, linewidth=0.5)


def _row(axes: Any, row: int, of: Spread, colour: str) -> None:
    axes.plot([of.low, of.high], [row, row], color=colour, linewidth=1.0, solid_capstyle="butt")
    axes.barh(
        row, of.upper - of.lower, left=of.lower, height=0.62, color=colour, alpha=0.35, edgecolor=colour, linewidth=0.6
    )
    axes.plot([of.median, of.median], [row - 0.36, row + 0.36], color=colour, linewidth=2.0, solid_capstyle="butt")
    axes.plot(of.mean, row, "o", color="white", markeredgecolor=colour, markersize=3.5, markeredgewidth=0.9)
    axes.plot(of.largest, row, "x", color=colour, markersize=3.5, markeredgewidth=0.9)
