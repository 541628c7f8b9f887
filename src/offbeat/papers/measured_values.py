"""Measure a published quantity in our runs: one number per method and seed, in the paper's unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from statistics import fmean, pstdev
from typing import Literal

from offbeat.core.errors import RunError
from offbeat.engine import Target
from offbeat.experiment import Comparison
from offbeat.experiment.run import Run
from offbeat.metrics import Summary, measure_values, shared_target, time_to_reach
from offbeat.papers.entries import RELATIVE_TIME, Quantity

Summaries = Mapping[str, Mapping[int, Summary]]  # method -> seed -> summary of a finished run
BoundSign = Literal[">", "<", "?"]  # the true mean is greater, less or unknown


@dataclass(frozen=True)
class MeasuredValues:
    """Values by method and seed. Runs that miss a target count with their end time, which is a bound."""

    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    no_value: Mapping[str, int] = field(default_factory=dict)  # seeds without a finite value
    not_reached: Mapping[str, int] = field(default_factory=dict)  # seeds that did not reach the target
    bounds: Mapping[str, BoundSign] = field(default_factory=dict)  # methods whose mean is only a bound
    target: Target | None = None  # of relative times


def measure(quantity: Quantity, comparison: Comparison, summaries: Summaries, reference: str) -> MeasuredValues:
    """Measure the quantity in finished runs; the reference is the method whose relative time is 1."""
    if quantity.key == RELATIVE_TIME:
        return _measure_times(comparison, summaries, reference)
    values = {
        method: {
            seed: quantity.factor * value
            for seed, summary in by_seed.items()
            if isfinite(value := _measured_value(quantity.key, summary))
        }
        for method, by_seed in summaries.items()
    }
    no_value = {method: len(by_seed) - len(values[method]) for method, by_seed in summaries.items()}
    return MeasuredValues(
        {method: by_seed for method, by_seed in values.items() if by_seed},
        {method: count for method, count in no_value.items() if count},
    )


@dataclass(frozen=True)
class CurveStability:
    """Shows how much the final value of a run depends on when the run ends."""

    final: float
    best: float  # of all evaluations
    swing: float  # standard deviation over the last tenth of the evaluations


def curve_stability(comparison: Comparison, summaries: Summaries) -> dict[str, list[CurveStability]]:
    """Return the stability of the headline metric, by method."""
    stability: dict[str, list[CurveStability]] = {}
    for entry, run in comparison.entries():
        method, seed = entry["strategy"], entry["seed"]
        if (summary := summaries.get(method, {}).get(seed)) is None:
            continue
        values = [value for _, value in run.curve(summary.headline).points]
        if values:
            best = max(values) if summary.higher(summary.headline) else min(values)
            swing = pstdev(values[-max(2, len(values) // 10) :])
            stability.setdefault(method, []).append(CurveStability(values[-1], best, swing))
    return stability


def _measured_value(key: str, summary: Summary) -> float:
    """Return the quantity with this key from the summary of a run; nan if the run has none."""
    if key == "server_seconds_an_update":
        return summary.server_seconds / summary.updates if summary.updates else nan
    if key.startswith("metrics."):
        return summary.metrics.get(key.removeprefix("metrics."), nan)
    known = measure_values(summary)
    if key not in known:
        raise RunError(f"unknown measure {key!r}")
    return known[key]


def _measure_times(comparison: Comparison, summaries: Summaries, reference: str) -> MeasuredValues:
    """Measure the times to the target, relative to those of the reference."""
    by_key = {(entry["strategy"], entry["seed"]): run for entry, run in comparison.entries()}
    runs = {method: {seed: by_key[method, seed] for seed in by_seed} for method, by_seed in summaries.items()}
    target = _common_target(runs, summaries)
    if target is None:
        return MeasuredValues()
    times = {
        method: {
            seed: (time_to_reach(run.curve(target.metric), target), summaries[method][seed].seconds)
            for seed, run in by_seed.items()
        }
        for method, by_seed in runs.items()
    }
    return replace(relative_times(times, reference), target=target)


def relative_times(times: Mapping[str, Mapping[int, tuple[float | None, float]]], reference: str) -> MeasuredValues:
    """Divide the time of each seed by the mean time of the reference.

    Only seeds that all methods share are used, so that all values have the same unit. `times` holds when the target
    was reached (None: never) and when the run ended.
    """
    shared = sorted(set.intersection(*(set(by_seed) for by_seed in times.values()))) if reference in times else []
    counted = {
        method: {seed: end if reached is None else reached for seed, (reached, end) in by_seed.items()}
        for method, by_seed in times.items()
    }
    base = fmean(counted[reference][seed] for seed in shared) if shared else 0.0
    if not base:
        return MeasuredValues()
    not_reached = {method: sum(by_seed[seed][0] is None for seed in shared) for method, by_seed in times.items()}
    bounds: dict[str, BoundSign] = {
        method: ("?" if not_reached[reference] else ">") if not_reached[method] else "<"
        for method in times
        if method != reference and (not_reached[method] or not_reached[reference])
    }
    return MeasuredValues(
        {method: {seed: by_seed[seed] / base for seed in shared} for method, by_seed in counted.items()},
        not_reached={method: count for method, count in not_reached.items() if count},
        bounds=bounds,
    )


def _common_target(runs: Mapping[str, Mapping[int, Run]], summaries: Summaries) -> Target | None:
    """Return the target of the experiment, or else a value that every method reaches."""
    method = next(iter(runs))
    seed = next(iter(runs[method]))
    experiment, first = runs[method][seed].experiment(), summaries[method][seed]
    if experiment.target is not None:
        return experiment.target.with_direction(first.higher_is_better)
    headline = {name: [run.curve(first.headline) for run in by_seed.values()] for name, by_seed in runs.items()}
    return shared_target(headline, first.headline, first.higher(first.headline))
