"""A comparison that answers one question, in bounded time: which method for these sites?

How long a run takes is tried out for a few seconds; then there are as many seeds as the time allows, three at least,
and where not even these fit the runs are made shorter, which is said.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from offbeat.core.about import About
from offbeat.engine.progress import Status
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import INTERRUPTED
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run import execution as runs
from offbeat.experiment.spec.choices import name_of
from offbeat.experiment.spec.config import Experiment
from offbeat.results import method_choice
from offbeat.scenario.faults import Spoiling
from offbeat.workers import registry

BUDGET = 120.0  # host seconds
LEAST, MOST = 3, 5  # seeds
PATIENCE = 4.0  # host seconds of a trial
STARTING = 10.0  # host seconds until all processes are there, and for the figure and the page
STAND_IN = "stand_in"  # in the manifest: what of the world is not the sites' own


@dataclass(frozen=True)
class Plan:
    seeds: int
    until: Until
    expected: float | None  # host seconds; None: nobody tried
    shortened: float = 1.0  # the runs are this share of what was asked for


def horizon(experiment: Experiment) -> Experiment:
    """The same without an end at a target, at which all methods would be alike; how long each takes to it is told."""
    until = experiment.until
    if until.target is None:
        return experiment
    return replace(experiment, until=replace(until, target=None), target=until.target)


def methods(experiment: Experiment) -> list[str]:
    """Whom to try where nobody says: one of each kind, with a buffer that fits these clients."""
    k = max(2, min(10, experiment.clients // 4))
    return ["fedavg", "fedasync", f"fedbuff(k={k})", "fedat", "orthofl"]


def tried(experiment: Experiment, patience: float = PATIENCE) -> float:
    """Host seconds that a run of this takes: one is begun, and thrown away."""
    began, share = time.monotonic(), 0.0
    first: float | None = None

    def watch(status: Status) -> bool:
        nonlocal first, share
        now = time.monotonic()
        first, share = now if first is None else first, max(share, status.share)
        return now - first > patience

    with tempfile.TemporaryDirectory(prefix="offbeat-which-") as folder:
        outcome = runs.execute(runs.create(Path(folder) / "trial", experiment), watch)
    spent = time.monotonic() - (began if first is None else first)
    done = outcome is None or outcome.reason != INTERRUPTED
    return spent if done else spent / max(share, 1e-4)


def plan(
    experiments: Mapping[str, Experiment],
    budget: float,
    seeds: int | None = None,
    fixed: bool = False,
    one: float | None = None,
    cores: int | None = None,
) -> Plan:
    """`seeds`: as asked for; `fixed`: the end of the runs was asked for too. `one`: host seconds of a run."""
    first = next(iter(experiments.values()))
    if one is None or (seeds is not None and fixed):
        return Plan(seeds or MOST, first.until, None)
    at_once = max(1, min(cores or registry.cores_of(registry.INLINE), len(experiments)))
    each, room = one * len(experiments) / at_once, max(budget - STARTING, budget / 2)
    count = seeds or max(LEAST, min(MOST, int(room / each)))
    share = 1.0 if fixed else min(1.0, room / (each * count))
    return Plan(count, _shorter(first.until, share), STARTING + each * count * share, share)


def _shorter(until: Until, share: float) -> Until:
    if share >= 1:
        return until
    seconds = None if until.seconds is None else float(f"{until.seconds * share:.2g}")
    updates = None if until.updates is None else max(1, int(until.updates * share))
    return Until(seconds=seconds, updates=updates)


def ending(experiment: Experiment, until: Until) -> Experiment:
    """The experiment with this end; it is looked at often enough, however near that is."""
    every = experiment.evaluate_every
    if every is not None and until.seconds is not None and every > until.seconds / 4:
        every = None
    return replace(experiment, until=until, evaluate_every=every)


def judge(comparison: Comparison) -> method_choice.Advice:
    """What the finished runs say."""
    found = comparison.finished()
    candidates: list[method_choice.Candidate] = []
    spoilt = False
    for label in comparison.strategies():
        experiment = comparison.runs(label)[0].experiment()
        spoilt = spoilt or any(isinstance(fault, Spoiling) for fault in experiment.faults)
        about: About | None = getattr(experiment.strategy, "about", None)
        name = name_of("strategy", experiment.strategy)
        candidates.append(method_choice.Candidate(label, name, about, found.get(label, {})))
    return method_choice.give(candidates, spoilt)


def unfinished(comparison: Comparison) -> bool:
    return not all(run.complete for _, run in comparison.entries())
