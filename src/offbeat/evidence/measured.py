"""What came out, in a paper's unit: of each method and seed one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from statistics import fmean, pstdev

from offbeat.core.errors import RunError
from offbeat.engines.until import Target
from offbeat.evidence.published import RELATIVE_TIME, Quantity
from offbeat.experiment import curves, measures
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.metrics import Summary
from offbeat.experiment.run import Run

Found = Mapping[str, Mapping[int, Summary]]  # method -> seed -> what came out


@dataclass(frozen=True)
class Measured:
    """By method and seed. A time that was not reached counts with the time that was watched: it is larger."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)  # of how many seeds that is so


def measure(quantity: Quantity, comparison: Comparison, found: Found) -> Measured:
    """`found`: of the comparison's finished runs."""
    if quantity.key == RELATIVE_TIME:
        return _relative(comparison, found)
    values = {
        method: {
            seed: quantity.factor * value
            for seed, summary in given.items()
            if isfinite(value := _read(quantity.key, summary))
        }
        for method, given in found.items()
    }
    return Measured({method: given for method, given in values.items() if given})


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


def _relative(comparison: Comparison, found: Found) -> Measured:
    """Each seed's time to the target over the mean of the reference's, of the seeds that both have."""
    runs = {(e["strategy"], e["seed"]): run for e, run in comparison.entries()}
    against = comparison.checked(None)
    if against not in found:
        return Measured()
    done = {method: {seed: runs[method, seed] for seed in given} for method, given in found.items()}
    target = _target(done, found)
    if target is None:
        return Measured()
    times, beyond = dict[str, dict[int, float]](), dict[str, int]()
    for method, given in done.items():
        reached = {seed: curves.time_to(run.curve(target.metric), target) for seed, run in given.items()}
        late = [seed for seed, time in reached.items() if time is None]
        times[method] = {seed: found[method][seed].seconds if t is None else t for seed, t in reached.items()}
        if late:
            beyond[method] = len(late)
    if beyond.get(against) == len(times[against]):
        return Measured()  # nobody's time can be told in times of one that never got there
    made = {}
    for method, mine in times.items():
        shared = [seed for seed in mine if seed in times[against]]
        base = fmean(times[against][seed] for seed in shared) if shared else 0.0
        if base:
            made[method] = {seed: mine[seed] / base for seed in shared}
    return Measured(made, beyond)


def _target(done: Mapping[str, Mapping[int, Run]], found: Found) -> Target | None:
    """The experiment's own, else what every method gets to."""
    method = next(iter(done))
    seed = next(iter(done[method]))
    experiment, first = done[method][seed].experiment(), found[method][seed]
    own = experiment.until.target or experiment.target
    if own is not None:
        return own.towards(first.higher_is_better)
    drawn = {name: [run.curve(first.headline) for run in given.values()] for name, given in done.items()}
    return curves.shared_target(drawn, first.headline, first.higher(first.headline))
