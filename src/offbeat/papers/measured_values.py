"""What came out, in a paper's unit: of each method and seed one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from statistics import fmean, pstdev
from typing import Literal, cast

from offbeat.core.errors import RunError
from offbeat.engine.until import Target
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run.execution import Run
from offbeat.metrics import curves, measures
from offbeat.metrics.trace_summary import Summary
from offbeat.papers.entries import RELATIVE_TIME, Quantity

Found = Mapping[str, Mapping[int, Summary]]  # method -> seed -> what came out


Bound = Literal[">", "<", "?"]  # it is more than the mean that is told, less, or nobody knows


@dataclass(frozen=True)
class Measured:
    """By method and seed. A time that was not reached counts with the time that was watched: it is larger."""

    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    without: Mapping[str, int] = field(default_factory=dict)  # of how many seeds there is no number
    beyond: Mapping[str, int] = field(default_factory=dict)  # how many did not get there
    bounds: Mapping[str, Bound] = field(default_factory=dict)  # of whom a mean is not the mean
    target: Target | None = None  # of times: to what


def measure(quantity: Quantity, comparison: Comparison, found: Found, reference: str) -> Measured:
    """`found`: of the comparison's finished runs. `reference`: the method whose time is 1."""
    if quantity.key == RELATIVE_TIME:
        return _times(comparison, found, reference)
    values = {
        method: {
            seed: quantity.factor * value
            for seed, summary in given.items()
            if isfinite(value := _read(quantity.key, summary))
        }
        for method, given in found.items()
    }
    without = {method: len(given) - len(values[method]) for method, given in found.items()}
    return Measured(
        {method: given for method, given in values.items() if given},
        {method: number for method, number in without.items() if number},
    )


@dataclass(frozen=True)
class Steadiness:
    """Of one run: would the number be another had it ended a little earlier?"""

    final: float
    best: float  # on the whole grid
    swing: float  # deviation over the last tenth of the grid


def steadiness(comparison: Comparison, found: Found) -> dict[str, list[Steadiness]]:
    """By method, of the headline."""
    made: dict[str, list[Steadiness]] = {}
    for entry, run in comparison.entries():
        method, seed = entry["strategy"], entry["seed"]
        if (summary := found.get(method, {}).get(seed)) is None:
            continue
        values = [value for _, value in run.curve(summary.headline).points]
        if values:
            best = max(values) if summary.higher(summary.headline) else min(values)
            swing = pstdev(values[-max(2, len(values) // 10) :])
            made.setdefault(method, []).append(Steadiness(values[-1], best, swing))
    return made


def _read(key: str, summary: Summary) -> float:
    if key == "server_seconds_an_update":
        return summary.server_seconds / summary.updates if summary.updates else nan
    if key.startswith("metrics."):
        return summary.metrics.get(key.removeprefix("metrics."), nan)
    known = measures.values(summary)
    if key not in known:
        raise RunError(f"{key!r} is no measure")
    return known[key]


def _times(comparison: Comparison, found: Found, reference: str) -> Measured:
    runs = {(e["strategy"], e["seed"]): run for e, run in comparison.entries()}
    done = {method: {seed: runs[method, seed] for seed in given} for method, given in found.items()}
    target = _target(done, found)
    if target is None:
        return Measured()
    times = {
        method: {
            seed: (curves.time_to(run.curve(target.metric), target), found[method][seed].seconds)
            for seed, run in given.items()
        }
        for method, given in done.items()
    }
    return replace(relative(times, reference), target=target)


def relative(times: Mapping[str, Mapping[int, tuple[float | None, float]]], against: str) -> Measured:
    """Each seed's time over the mean of the reference's, of the seeds that all have, so that all are in one unit.
    `times`: when each got there (None: it did not), and for how long it was watched.
    """
    shared = sorted(set.intersection(*(set(given) for given in times.values()))) if against in times else []
    counted = {
        method: {seed: watched if reached is None else reached for seed, (reached, watched) in given.items()}
        for method, given in times.items()
    }
    base = fmean(counted[against][seed] for seed in shared) if shared else 0.0
    if not base:
        return Measured()
    late = {method: sum(given[seed][0] is None for seed in shared) for method, given in times.items()}
    bounds = {
        method: ("?" if late[against] else ">") if late[method] else "<"
        for method in times
        if method != against and (late[method] or late[against])
    }
    return Measured(
        {method: {seed: given[seed] / base for seed in shared} for method, given in counted.items()},
        beyond={method: number for method, number in late.items() if number},
        bounds=cast("dict[str, Bound]", bounds),
    )


def _target(done: Mapping[str, Mapping[int, Run]], found: Found) -> Target | None:
    """The experiment's own, else what every method gets to; not where runs were cut short, which is another."""
    method = next(iter(done))
    seed = next(iter(done[method]))
    experiment, first = done[method][seed].experiment(), found[method][seed]
    if experiment.target is not None:
        return experiment.target.towards(first.higher_is_better)
    drawn = {name: [run.curve(first.headline) for run in given.values()] for name, given in done.items()}
    return curves.shared_target(drawn, first.headline, first.higher(first.headline))
