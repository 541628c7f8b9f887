"""Metrics of learning curves and client groups: best value, area, relative time, unfairness, forgetting.

docs/metrics.md explains where each comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, nan
from statistics import fmean

from offbeat.core.errors import require, unknown_name
from offbeat.engine import Target

DAY = 86_400.0


@dataclass(frozen=True)
class Curve:
    """A metric on the evaluation grid."""

    seconds: list[float]
    values: list[float]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Return time and value of each point that is finite."""
        return [(now, value) for now, value in zip(self.seconds, self.values, strict=True) if isfinite(value)]

    @property
    def final(self) -> float:
        """Return the last value, finite or not; nan for an empty curve."""
        return self.values[-1] if self.values else nan


def headline_metric(metrics: Sequence[str]) -> str:
    """Return the metric that tables show: accuracy if there is one, else the first that is not the loss."""
    names = [name for name in metrics if "/" not in name]
    return "acc" if "acc" in names else next((name for name in names if name != "loss"), "loss")


def best_value(curve: Curve, higher: bool) -> float:
    """Return the best value on the grid (top accuracy in FedCompass): the smallest if lower is better."""
    values = [value for _, value in curve.points]
    return (max if higher else min)(values, default=nan)


def aulc(curve: Curve) -> float:
    """Return the area under the learning curve by the trapezoidal rule, in metric × days (FedPSA)."""
    areas = ((after - before) * (a + b) / 2 for (before, a), (after, b) in pairwise(curve.points))
    return sum(areas) / DAY if curve.points else nan


def time_to_reach(curve: Curve, target: Target) -> float | None:
    """Return the first time on the grid at which the target is reached."""
    return next((now for now, value in curve.points if target.reached({target.metric: value})), None)


def variance(overall: float, active: float, stragglers: float) -> float:
    """Return the unfairness of Fed-OGD, 1/2 (|a1 - a|² + |a2 - a|²)."""
    return ((active - overall) ** 2 + (stragglers - overall) ** 2) / 2


def forgetting(curve: Curve, updates: Mapping[int, Sequence[float]]) -> float:
    """Return how much a curve falls on average between two consecutive updates of a slow client.

    `updates` holds the arrival times of each slow client. A gap counts if it has at least two grid points; the result
    is nan if no gap does.
    """
    drops = []
    for times in updates.values():
        for start, end in pairwise(times):
            # an evaluation comes after the updates of the same instant
            inside = [value for now, value in curve.points if start <= now < end]
            if len(inside) >= 2:
                drops.append(inside[0] - inside[-1])
    return fmean(drops) if drops else nan


def shared_target(
    curves: Mapping[str, Sequence[Curve]], metric: str, higher: bool, share: float = 0.95
) -> Target | None:
    """Return a target that all methods reach: `share` of the lowest final value (OrthoFL), 1/share of the highest loss.

    Methods whose final value is not finite are ignored; the result is None if none is left.
    """
    require(0 < share <= 1, f"share = {share} must be in (0, 1]: it is a share of the lowest final value")
    finals = [mean for by_seed in curves.values() if isfinite(mean := fmean(curve.final for curve in by_seed))]
    if not finals:
        return None
    return Target(metric, min(finals) * share if higher else max(finals) / share, higher)


def relative_times(curves: Mapping[str, Sequence[Curve]], target: Target, reference: str) -> dict[str, float]:
    """Return each method's mean time to the target over the reference's; nan unless all seeds of both reached it."""
    if reference not in curves:
        raise unknown_name("method", reference, curves)
    reached = {name: [time_to_reach(curve, target) for curve in by_seed] for name, by_seed in curves.items()}
    times = {name: fmean(nan if t is None else t for t in by_seed) for name, by_seed in reached.items()}
    base = times[reference]
    return {name: time / base if base else nan for name, time in times.items()}
