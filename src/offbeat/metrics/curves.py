"""What papers read off curves and groups: best value, area under the curve, relative time, unfairness, forgetting.

docs/metrics.md says where each comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, nan
from statistics import fmean

from offbeat.core.errors import require, unknown
from offbeat.engine.until import Target

DAY = 86_400.0


@dataclass(frozen=True)
class Curve:
    """A metric on the evaluation grid."""

    seconds: list[float]
    values: list[float]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Where it is a number."""
        return [(now, value) for now, value in zip(self.seconds, self.values, strict=True) if isfinite(value)]

    @property
    def final(self) -> float:
        return self.values[-1] if self.values else nan


def headline(metrics: Sequence[str]) -> str:
    """The metric a table shows: accuracy where there is one, else the first after the loss."""
    names = [name for name in metrics if "/" not in name]
    return "acc" if "acc" in names else next((name for name in names if name != "loss"), "loss")


def best(curve: Curve, higher: bool) -> float:
    """The best value on the grid (FedCompass's top accuracy): the smallest where less is better."""
    values = [value for _, value in curve.points]
    return (max if higher else min)(values, default=nan)


def aulc(curve: Curve, unit: float = DAY) -> float:
    """The area under the learning curve by trapezoids, in metric × days (FedPSA)."""
    areas = ((after - before) * (a + b) / 2 for (before, a), (after, b) in pairwise(curve.points))
    return sum(areas) / unit if curve.points else nan


def time_to(curve: Curve, target: Target) -> float | None:
    """The first point of the grid at which the target is reached."""
    return next((now for now, value in curve.points if target.reached({target.metric: value})), None)


def variance(overall: float, active: float, stragglers: float) -> float:
    """Fed-OGD's unfairness, 1/2 (|a1 - a|² + |a2 - a|²)."""
    return ((active - overall) ** 2 + (stragglers - overall) ** 2) / 2


def forgetting(curve: Curve, updates: Mapping[int, Sequence[float]]) -> float:
    """By how much a curve falls, on average, from one update of a slow client to just before its next.

    `updates`: when each slow client's updates arrived. A gap counts if the grid has two points in it; nan if none has.
    """
    drops = []
    for times in updates.values():
        for start, end in pairwise(times):
            # an evaluation comes after the updates of its instant
            inside = [value for now, value in curve.points if start <= now < end]
            if len(inside) >= 2:
                drops.append(inside[0] - inside[-1])
    return fmean(drops) if drops else nan


def shared_target(
    curves: Mapping[str, Sequence[Curve]], metric: str, higher: bool, share: float = 0.95
) -> Target | None:
    """What every method gets to: `share` of the lowest final value (OrthoFL), or 1/share of the highest (of losses).

    A method that ends with something that is no number does not count; None where none is left.
    """
    require(0 < share <= 1, f"share = {share}: of the lowest final value, in (0, 1]")
    finals = [mean for given in curves.values() if isfinite(mean := fmean(curve.final for curve in given))]
    if not finals:
        return None
    return Target(metric, min(finals) * share if higher else max(finals) / share, higher)


def relative_times(curves: Mapping[str, Sequence[Curve]], target: Target, reference: str) -> dict[str, float]:
    """Each method's mean time to the target over that of the reference; nan unless every seed of both reached it."""
    if reference not in curves:
        raise unknown("method", reference, curves)
    reached = {name: [time_to(curve, target) for curve in given] for name, given in curves.items()}
    times = {name: fmean(nan if t is None else t for t in found) for name, found in reached.items()}
    base = times[reference]
    return {name: time / base if base else nan for name, time in times.items()}
