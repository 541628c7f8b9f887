"""One picture of a comparison, for a paper or a README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offbeat.engines.until import Target
from offbeat.experiment.heatmap import NAMED, save_figure
from offbeat.experiment.series import Method

TIMELINES = 4  # methods whose timeline fits the picture


def save(methods: list[Method], metric: str, target: Target | None, title: str, path: Path) -> None:
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    shown = methods[:TIMELINES]
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    figure.suptitle(_plain(title))
    top, bottom = figure.subfigures(2, 1, height_ratios=(3, 2)).flat  # type: ignore[union-attr]
    left, right = top.subplots(1, 2, width_ratios=(5, 2))
    _curves(left, methods, metric, target)
    _staleness(right, methods)
    axes = bottom.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axis, method in zip(axes, shown, strict=True):
        _timeline(axis, method)
    axes[0].set_ylabel("client")
    names = next((m.names for m in methods if m.names), {})
    if 0 < len(names) <= NAMED:
        axes[0].set_yticks(list(names), [_plain(name) for name in names.values()])
    else:
        axes[0].yaxis.get_major_locator().set_params(integer=True)  # there is no client 2.5
    save_figure(figure, path)


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # a name is not a formula


def _curves(axis: Any, methods: list[Method], metric: str, target: Target | None) -> None:
    for m in methods:
        axis.plot(m.seconds, m.mean, color=m.colour, label=_plain(m.name), linewidth=1.8)
        axis.fill_between(m.seconds, m.low, m.high, color=m.colour, alpha=0.15, linewidth=0)
    if target is not None and target.metric == metric:
        axis.axhline(target.value, color="0.5", linestyle=":", linewidth=1)
    axis.set_xlabel("virtual seconds")
    axis.set_ylabel(_plain(metric))
    axis.set_title("mean over seeds, band from lowest to highest", fontsize="small")
    axis.legend(frameon=False)
    axis.grid(alpha=0.2)


def _staleness(axis: Any, methods: list[Method]) -> None:
    for m in methods:
        axis.plot(list(m.staleness), list(m.staleness.values()), drawstyle="steps-mid", marker=".", color=m.colour)
    axis.set_xlabel("staleness (versions)")
    axis.set_ylabel("share of updates")
    axis.set_title("how old updates are", fontsize="small")


def _timeline(axis: Any, method: Method) -> None:
    """Bars where a client trains, white where it waits; the first tenth of the run is enough to see it."""
    end = method.end / 10
    for span in method.spans:
        if span.started < end:
            length = min(span.ended, end) - span.started
            axis.barh(span.client, length, left=span.started, height=0.8, color=method.colour, edgecolor="white")
    axis.set_xlim(0, end)
    axis.set_xlabel("virtual seconds")
    axis.set_title(_plain(f"{method.name}: who trains when"), fontsize="small")
