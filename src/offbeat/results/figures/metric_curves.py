"""A metric against virtual time: the mean over seeds, and a band from the lowest to the highest."""

from __future__ import annotations

from typing import Any

from offbeat.engine.until import Target
from offbeat.results.figures.figure_style import LINES, LONGEST, columns, plain
from offbeat.results.series import EARLY, Series, axis

BANDS = 6  # methods at most whose bands can be seen through each other


def draw(axes: Any, series: Series) -> None:
    for method in series.methods:
        band, style = method.band(series.metric), method.style
        label = plain(method.name, LONGEST)
        axes.plot(band.x, band.mean, color=style.colour, linestyle=LINES[style.dash], label=label)
        if len(method.courses) > 1:
            faint = 0.15 if len(series.methods) <= BANDS else 0.07
            axes.fill_between(band.x, band.low, band.high, color=style.colour, alpha=faint, linewidth=0)
    if series.target is not None and series.target.metric == series.metric:
        _target(axes, series, series.target)
    limits = axis(series)
    if limits is not None:
        axes.set_ylim(*limits)
    axes.set_xlim(0, max(method.seconds.max(initial=0.0) for method in series.methods) or 1.0)
    axes.set_xlabel(series.clock)
    axes.set_ylabel(plain(series.metric))
    axes.set_title(_note(series), fontsize=7, loc="left", color="0.3")
    axes.grid(alpha=0.25, linewidth=0.5)


def _target(axes: Any, series: Series, target: Target) -> None:
    """A line, and its name at the right end, on the side that fewer curves end on."""
    axes.axhline(target.value, color="0.4", linestyle=":", linewidth=0.8)
    ends = [float(mean[-1]) for method in series.methods if len(mean := method.band(series.metric).mean)]
    side = "top" if 2 * sum(end >= target.value for end in ends) > len(ends) else "bottom"
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    at = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": side, "bbox": behind}
    axes.text(0.99, target.value, plain(f"target {target}"), fontsize=7, color="0.3", **at)


def _note(series: Series) -> str:
    seeds = max(len(method.courses) for method in series.methods)
    over = f"mean of {seeds} seeds, band: lowest to highest" if seeds > 1 else "one seed"
    worst, side = ("lowest", "from") if series.higher else ("highest", "up to")
    return f"{over}\naxis {side} the {worst} {'mean' if seeds > 1 else 'value'} after {EARLY:.0%} of the run"


def legend(figure: Any, series: Series, width: float) -> None:
    """Above everything, where it covers nothing."""
    if len(series.methods) > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        across = columns(series, width)
        figure.legend(handles, labels, loc="outside upper left", ncols=across, frameon=False, handlelength=2.6)
