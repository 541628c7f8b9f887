"""Figures for a paper: formats, font sizes, and no overlapping text."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from handwritten_runs import TARGET, write_run
from matplotlib.backends.backend_agg import FigureCanvasAgg

from offbeat.core.errors import ConfigError
from offbeat.results import figures, series, timelines
from offbeat.results.figures import figure_style, timeline
from results import messages

TEN = ("fedavg", "fedasync", "fedbuff", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass", "fedprox", "safa")
HOSTILE = "$\\frac{$<script>alert(1)</script> and a name that goes on and on and on"


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    home = tmp_path_factory.mktemp("ten")
    runs = {
        name: [write_run(home / f"{name}{seed}", name, seed, 0.9 - i / 50, target=TARGET) for seed in range(2)]
        for i, name in enumerate(TEN)
    }
    runs[HOSTILE] = runs.pop("safa")
    return replace(series.collect_series(runs, {0: "bern", 1: HOSTILE}), title="ten methods, 5 $")


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_suffix_selects_the_format_of_each_figure(ten, tmp_path, ending, start):
    for kind in figures.FIGURE_KINDS:
        path = tmp_path / f"{kind}.{ending}"
        figures.save_figure(ten, path, kind)
        assert path.read_bytes().startswith(start)


def test_the_same_figure_is_the_same_file(ten, tmp_path):
    for ending in ("pdf", "svg", "png"):
        one, other = (tmp_path / f"{i}.{ending}" for i in range(2))
        figures.save_figure(ten, one, "curves")
        figures.save_figure(ten, other, "curves")
        assert one.read_bytes() == other.read_bytes()


def test_unknown_suffixes_and_kinds_are_refused(ten, tmp_path):
    with pytest.raises(ConfigError, match=messages.UNKNOWN_SUFFIX):
        figures.save_figure(ten, Path("x.docx"))
    with pytest.raises(ConfigError, match=messages.UNKNOWN_KIND):
        figures.save_figure(ten, tmp_path / "x.pdf", "curve")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=figures.FIGURE_KINDS)
def drawn(request, ten):
    """A figure after layout, and its visible texts."""
    with matplotlib.rc_context(figure_style.RC_PARAMS):
        figure = figures.draw_figure(ten, request.param)
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    unseen = {id(label) for axes in figure.axes for label in _unseen(axes)}
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text().strip() and text.get_visible()]
    return figure, [(text, text.get_window_extent(renderer)) for text in texts if id(text) not in unseen]


def _unseen(axes):
    """Yield texts of invisible axes, and labels of ticks outside the axis limits."""
    if not axes.get_visible():
        yield from axes.findobj(matplotlib.text.Text)
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.majorTicks:
            if not min(limits) <= tick.get_loc() <= max(limits):
                yield from (tick.label1, tick.label2)


def test_no_text_is_smaller_than_seven_points(drawn):
    assert min(text.get_fontsize() for text, _ in drawn[1]) >= 7


def test_a_figure_has_the_width_of_a_column_or_a_page_and_contains_all_text(drawn):
    figure, texts = drawn
    assert figure.get_figwidth() in (3.4, 7.0)
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in texts:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, text.get_text()


def test_no_text_covers_another(drawn):
    for (one, a), (other, b) in combinations(drawn[1], 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, (one.get_text(), other.get_text())


def test_the_axis_shows_the_differences(ten):
    figure = figures.draw_figure(ten, "curves")
    low, high = figure.axes[0].get_ylim()
    # means from 0.72 to 0.9 after a quarter of the run: not 0 to 1
    assert (low, high) == pytest.approx((0.72 - 0.009, 0.9 + 0.009))


def test_every_method_has_its_timeline_over_the_whole_run(ten):
    with matplotlib.rc_context(figure_style.RC_PARAMS):
        figure = figures.draw_figure(ten, "timeline")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == len(TEN)
    assert {axes.get_xlim() for axes in shown} == {(0, 100)}
    first, *_, last = [label.get_text() for label in shown[0].get_yticklabels()]
    assert (first, last) == ("bern", "3")  # by name where there is one


def test_failures_and_absences_are_visible_in_a_timeline():
    layers = {name: np.zeros((1, timelines.BINS)) for name in ("work", "away", "arrived", "failed")}
    layers["away"][0, 0] = 1
    layers["work"][0, 1] = layers["arrived"][0, 2] = layers["failed"][0, 3] = 1
    image = timeline.lane_pixels(timelines.ClientLanes([0], 1.0, **layers), "#000000")  # one lane, 60 pixels high
    top, middle, low = image[0], image[25], image[45]
    assert middle[0] == pytest.approx([0.55] * 3)  # away: a grey line in the middle,
    assert top[0].tolist() == low[0].tolist() == [1, 1, 1]  # and white around it
    assert top[1] == pytest.approx([0.65] * 3)  # at work: a third of the method's black
    assert top[2] == pytest.approx([0.1] * 3)  # an update: nearly all of it
    assert top[3] == pytest.approx([1] * 3)  # failed: the lower half of the lane,
    assert low[3] == pytest.approx(timeline.FAILED_COLOUR)  # in red
    assert top[4] == pytest.approx([1] * 3)  # waiting: white


@pytest.mark.parametrize("clients", range(1, 12))
def test_any_number_of_lanes_can_be_drawn(clients):
    """A lane is 60 // n pixels high, six at least, and a third of that need not be a whole number."""
    layers = {name: np.ones((clients, timelines.BINS)) for name in ("work", "away", "arrived", "failed")}
    image = timeline.lane_pixels(timelines.ClientLanes(list(range(clients)), 1.0, **layers), "#000000")
    assert image.shape == (clients * max(6, 60 // clients), timelines.BINS, 3)
