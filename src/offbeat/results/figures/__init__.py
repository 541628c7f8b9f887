"""Figures for a paper: PDF, SVG or PNG, at the width they are printed in, with no letter smaller than 7 points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from offbeat.core.errors import unknown
from offbeat.results.figures import metric_curves, staleness_boxes, timeline
from offbeat.results.figures.figure_style import COLUMN, PAGE, height_of, new, plain, print_to
from offbeat.results.series import Series

KINDS = ("all", "curves", "staleness", "timeline")
GAP = 0.25  # inches


def save(series: Series, path: Path, kind: str = "all") -> None:
    """Whole or not at all; the ending of the path says which format."""
    if kind not in KINDS:
        raise unknown("kind of figure", kind, KINDS)
    draw: Callable[[Series], Any] = {"all": _all, "curves": _curves, "staleness": _staleness, "timeline": _timeline}[
        kind
    ]
    print_to(path, lambda: draw(series))


def _curves(series: Series) -> Any:
    legend = height_of(series, COLUMN)
    figure = new(COLUMN, 2.2 + legend)
    metric_curves.draw(figure.subplots(), series)
    metric_curves.legend(figure, series, COLUMN)
    return figure


def _staleness(series: Series) -> Any:
    figure = new(COLUMN, staleness_boxes.height(series))
    staleness_boxes.draw(figure.subplots(), series)
    return figure


def _timeline(series: Series) -> Any:
    figure = new(PAGE, timeline.height(series))
    timeline.draw(figure, series)
    return figure


def _all(series: Series) -> Any:
    """Curves and staleness beside each other, timelines below."""
    heights = (max(2.6, staleness_boxes.height(series)) + height_of(series, PAGE), timeline.height(series))
    figure = new(PAGE, sum(heights) + GAP)
    figure.suptitle(plain(series.title), fontsize=9)
    top, bottom = figure.subfigures(2, 1, height_ratios=heights)
    left, right = top.subplots(1, 2, width_ratios=(5, 4))
    metric_curves.draw(left, series)
    metric_curves.legend(top, series, PAGE)
    staleness_boxes.draw(right, series)
    timeline.draw(bottom, series)
    return figure
