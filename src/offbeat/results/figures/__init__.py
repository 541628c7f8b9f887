"""Figures in PDF, SVG or PNG: curves, staleness and timelines at print width, and a heat map of the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from offbeat.core.errors import unknown_name
from offbeat.engine import Target
from offbeat.experiment import ClassCounts
from offbeat.metrics import Quantiles, quantiles_of_counts
from offbeat.results.figures.figure_style import (
    COLUMN_WIDTH,
    LINE_STYLES,
    MAX_NAME_LENGTH,
    PAGE_WIDTH,
    escape_text,
    legend_columns,
    legend_height,
    new_figure,
    print_figure,
)
from offbeat.results.figures.figure_style import write_figure as write_figure
from offbeat.results.figures.timeline import draw_timelines, timeline_height
from offbeat.results.series import EARLY_SHARE, FigureSeries, metric_axis_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FIGURE_KINDS = ("all", "curves", "staleness", "timeline")
PANEL_GAP = 0.25  # inches
MAX_OPAQUE_BANDS = 6  # with more methods the bands are fainter, so that all stay visible
ROW_HEIGHT = 0.19  # inches per method in the staleness panel
MIN_ROWS = 4  # rows of the staleness panel, so that a single box does not fill it
MAX_BOX_LABEL = 16  # letters of a method's name in the staleness panel
MAX_NAMED_CLIENTS = 40  # the largest number of client names that fit beside the heat map
MAX_CLIENT_NAME = 30  # letters of a client's name beside the heat map
HEATMAP_TITLE = "training examples by client and class (first seed)"
STALENESS_TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def save_figure(series: FigureSeries, path: Path, kind: str = "all") -> None:
    """Write one kind of figure atomically; the suffix of the path selects the format."""
    if kind not in FIGURE_KINDS:
        raise unknown_name("kind of figure", kind, FIGURE_KINDS)
    print_figure(path, lambda: draw_figure(series, kind))


def draw_figure(series: FigureSeries, kind: str) -> Figure:
    """Draw one panel, or curves and staleness side by side with the timelines below."""
    if kind == "curves":
        figure = new_figure(COLUMN_WIDTH, 2.2 + legend_height(series, COLUMN_WIDTH))
        draw_metric_curves(figure.subplots(), series)
        draw_legend(figure, series, COLUMN_WIDTH)
    elif kind == "staleness":
        figure = new_figure(COLUMN_WIDTH, staleness_height(series))
        draw_staleness_boxes(figure.subplots(), series)
    elif kind == "timeline":
        figure = new_figure(PAGE_WIDTH, timeline_height(series))
        draw_timelines(figure, series)
    else:
        heights = (max(2.6, staleness_height(series)) + legend_height(series, PAGE_WIDTH), timeline_height(series))
        figure = new_figure(PAGE_WIDTH, sum(heights) + PANEL_GAP)
        figure.suptitle(escape_text(series.title), fontsize=9)
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
        left, right = top.subplots(1, 2, width_ratios=(5, 4))
        draw_metric_curves(left, series)
        draw_legend(top, series, PAGE_WIDTH)
        draw_staleness_boxes(right, series)
        draw_timelines(bottom, series)
    return figure


def draw_metric_curves(axes: Axes, series: FigureSeries) -> None:
    """Draw each method's mean over seeds, with a band from the lowest to the highest seed."""
    for method in series.methods:
        band, style = method.band(series.metric), method.style
        label = escape_text(method.name, MAX_NAME_LENGTH)
        axes.plot(band.seconds, band.mean, color=style.colour, linestyle=LINE_STYLES[style.dash], label=label)
        if len(method.curves) > 1:
            opacity = 0.15 if len(series.methods) <= MAX_OPAQUE_BANDS else 0.07
            axes.fill_between(band.seconds, band.low, band.high, color=style.colour, alpha=opacity, linewidth=0)
    if series.target is not None and series.target.metric == series.metric:
        _draw_target(axes, series, series.target)
    limits = metric_axis_limits(series)
    if limits is not None:
        axes.set_ylim(*limits)
    axes.set_xlim(0, max(method.seconds.max(initial=0.0) for method in series.methods) or 1.0)
    axes.set_xlabel(series.clock)
    axes.set_ylabel(escape_text(series.metric))
    seeds = max(len(method.curves) for method in series.methods)
    over = f"mean of {seeds} seeds, band: minimum to maximum" if seeds > 1 else "one seed"
    worst, side = ("lowest", "starts at") if series.higher else ("highest", "ends at")
    value = "mean" if seeds > 1 else "value"
    title = f"{over}\naxis {side} the {worst} {value} after {EARLY_SHARE:.0%} of the run"
    axes.set_title(title, fontsize=7, loc="left", color="0.3")
    axes.grid(alpha=0.25, linewidth=0.5)


def _draw_target(axes: Axes, series: FigureSeries, target: Target) -> None:
    """Draw the target as a line, labelled on the side of it where fewer curves end."""
    axes.axhline(target.value, color="0.4", linestyle=":", linewidth=0.8)
    ends = [float(mean[-1]) for method in series.methods if len(mean := method.band(series.metric).mean)]
    side = "top" if 2 * sum(end >= target.value for end in ends) > len(ends) else "bottom"
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    place = axes.get_yaxis_transform()  # x as a share of the width
    text = axes.text(0.99, target.value, escape_text(f"target {target}"), transform=place, ha="right", va=side)
    text.set(fontsize=7, color="0.3", bbox=box)


def draw_legend(figure: Figure | SubFigure, series: FigureSeries, width: float) -> None:
    """Place the legend above the axes, where it covers nothing."""
    if len(series.methods) > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        columns = legend_columns(series, width)
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, handlelength=2.6)


def staleness_height(series: FigureSeries) -> float:
    """Return the height of the staleness panel in inches."""
    return 1.0 + ROW_HEIGHT * len(series.methods)


def draw_staleness_boxes(axes: Axes, series: FigureSeries) -> None:
    """Draw one row per method: a box for the middle half of its updates, whiskers from 5 % to 95 %."""
    from numpy import expm1, log1p

    rows = [quantiles_of_counts(method.staleness) for method in series.methods]
    for row, (method, quantiles) in enumerate(zip(series.methods, rows, strict=True)):
        if quantiles is not None:
            _draw_box(axes, row, quantiles, method.style.colour)
    axes.set_xscale("function", functions=(log1p, expm1))
    largest = max((quantiles.largest for quantiles in rows if quantiles is not None), default=1)
    limit = expm1(log1p(max(1, largest)) * 1.06)
    ticks = [tick for tick in STALENESS_TICKS if tick <= limit]
    axes.set_xlim(-0.15, limit)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks(range(len(rows)), [escape_text(method.name, MAX_BOX_LABEL) for method in series.methods])
    axes.set_ylim(max(len(rows), MIN_ROWS) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("staleness (versions)")
    title = "line: 5 % to 95 % of updates, box: 25 % to 75 %,\n| median, ○ mean, × maximum"
    axes.set_title(title, fontsize=7, loc="right", color="0.3")  # aligned right: it may extend over the names
    axes.grid(axis="x", alpha=0.25, linewidth=0.5)


def _draw_box(axes: Axes, row: int, q: Quantiles, colour: str) -> None:
    """Draw whiskers, box, median, mean and maximum of one method."""
    axes.plot([q.low, q.high], [row, row], color=colour, linewidth=1.0, solid_capstyle="butt")
    width = q.upper - q.lower
    axes.barh(row, width, left=q.lower, height=0.62, color=colour, alpha=0.35, edgecolor=colour, linewidth=0.6)
    axes.plot([q.median, q.median], [row - 0.36, row + 0.36], color=colour, linewidth=2.0, solid_capstyle="butt")
    axes.plot(q.mean, row, "o", color="white", markeredgecolor=colour, markersize=3.5, markeredgewidth=0.9)
    axes.plot(q.largest, row, "x", color=colour, markersize=3.5, markeredgewidth=0.9)


def save_heatmap(class_counts: ClassCounts, path: Path, title: str = HEATMAP_TITLE) -> None:
    """Write the heat map to a PDF, SVG or PNG file."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    counts = class_counts.counts
    names = [escape_text(name, MAX_CLIENT_NAME) for name in class_counts.client_labels()]
    clients, classes = counts.shape
    figure = new_figure(min(3 + 0.3 * classes, 12), min(2 + 0.2 * clients, 12))
    axes = figure.subplots()
    image = axes.imshow(counts.numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    if classes <= 20:
        axes.set_xticks(range(classes), class_counts.class_labels())
    max_ticks: int | Literal["auto"] = min(clients, MAX_NAMED_CLIENTS) if class_counts.names else "auto"
    axes.yaxis.set_major_locator(MaxNLocator(nbins=max_ticks, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: names[int(at)] if 0 <= at < clients else ""))
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    axes.set_title(escape_text(title), fontsize="small")
    figure.colorbar(image, label="examples")
    write_figure(figure, path)
