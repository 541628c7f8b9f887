"""Recommendation of a method for given sites, from a tournament of a limited duration.

The best mean of the headline metric wins. A method is tied with it if the paired 95 % interval of their difference
includes 0; of these, the one that moves the fewest bytes is recommended, then the one with the least server state per
client, then the simplest. Methods with failed runs are excluded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, isnan, nan
from pathlib import Path
from statistics import fmean

from offbeat.core.about import About
from offbeat.core.strategies import REGISTRY
from offbeat.engine import Status, Until
from offbeat.engine.virtual import INTERRUPTED
from offbeat.experiment import Comparison
from offbeat.experiment.run import create_run, execute_run
from offbeat.experiment.spec import Experiment, name_of
from offbeat.metrics import MISSING, UNFINISHED, Interval, Summary, format_bytes, paired_difference
from offbeat.results.result_warnings import NORMAL_ENDS
from offbeat.scenario import ResultFault
from offbeat.workers import INLINE, cores_of

BUDGET = 120.0  # host seconds
MIN_SEEDS, MAX_SEEDS = 3, 5
TRIAL_SECONDS = 4.0  # host seconds of the trial run
OVERHEAD_SECONDS = 10.0  # host seconds for starting processes, and for the figure and the page
STAND_IN_KEY = "stand_in"  # in the manifest: description of the data that replaces the sites' own
SIMILAR_BYTES_FACTOR = 1.05  # up to this factor two numbers of bytes count as equal
# the methods that are easiest to run and explain, in order; the others follow in the order of the registry
SIMPLEST_FIRST = ("fedavg", "fedprox", "fedasync", "fedbuff", "local", "fedavgm", "fedadam", "fedat")


@dataclass(frozen=True)
class Candidate:
    """A method and the summaries of its finished runs."""

    label: str
    name: str  # in the registry or in a user's file
    about: About | None
    summaries: Mapping[int, Summary]  # by seed

    @property
    def finals(self) -> dict[int, float]:
        """Return the final value of the headline metric by seed."""
        return {seed: s.metrics.get(s.headline, nan) for seed, s in self.summaries.items()}

    @property
    def mean(self) -> float:
        """Return the mean of the final values."""
        return fmean(self.finals.values())

    @property
    def bytes_moved(self) -> float:
        """Return the mean number of bytes that a run moves."""
        return fmean(s.bytes_down + s.bytes_up for s in self.summaries.values())

    @property
    def kept_per_client(self) -> float:
        """Return the bytes of server state per client."""
        if self.about is not None and self.about.keeps.startswith("nothing"):
            return 0.0
        size = fmean(s.server_bytes / max(1, s.clients) for s in self.summaries.values())
        return size if isfinite(size) else 0.0


@dataclass(frozen=True)
class Recommendation:
    """The recommended method, with the evidence for it."""

    why: str
    ranked: list[Candidate]  # best first, excluded methods last
    metric: str = ""
    seeds: Sequence[int] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)  # label -> reason
    differences: Mapping[str, Interval] = field(default_factory=dict)  # label -> difference to the best
    tied: Sequence[str] = ()  # the best, then all that are tied with it
    recommended: str | None = None

    @property
    def best(self) -> str | None:
        """Return the label of the method with the best mean."""
        return self.tied[0] if self.tied else None


def recommend(candidates: Sequence[Candidate], faulty_updates: bool = False) -> Recommendation:
    """Apply the rule to the seeds that all methods have finished.

    With `faulty_updates` the scenario damages updates, so refused updates do not exclude a method.
    """
    seeds = sorted(set.intersection(*(set(c.summaries) for c in candidates)))
    if not seeds:
        return Recommendation("no seed is finished for every method yet", list(candidates))
    methods = [replace(c, summaries={seed: c.summaries[seed] for seed in seeds}) for c in candidates]
    first = methods[0].summaries[seeds[0]]
    excluded = {c.label: reason for c in methods if (reason := _reason_against(c, faulty_updates)) is not None}
    eligible = [c for c in methods if c.label not in excluded]
    eligible.sort(key=lambda c: c.mean, reverse=first.higher(first.headline))
    ranked = [*eligible, *(c for c in methods if c.label in excluded)]
    if not eligible:
        why = "no method can be recommended: " + "; ".join(f"{label}: {reason}" for label, reason in excluded.items())
        return Recommendation(why, ranked, first.headline, seeds, excluded)
    best, *others = eligible
    differences = {c.label: paired_difference(c.finals, best.finals) for c in others}
    tied = [best, *(c for c in others if not differences[c.label].excludes_zero)]
    choice, reason = _choose_among_tied(tied)
    why = _explain_choice(choice, reason, tied, eligible, first.headline)
    labels = [c.label for c in tied]
    return Recommendation(why, ranked, first.headline, seeds, excluded, differences, labels, choice.label)


def _reason_against(candidate: Candidate, faulty_updates: bool) -> str | None:
    """Return why a method is excluded whatever its results are, or None."""
    for seed, s in candidate.summaries.items():
        refused = sum(s.refused.values())
        if s.nothing_learned is not None:
            return f"seed {seed}: {s.nothing_learned.lower()}"
        if refused and not faulty_updates:
            return f"seed {seed}: {refused} of its updates were refused, most for {next(iter(s.refused))}"
        if s.ended not in NORMAL_ENDS and s.ended != UNFINISHED:
            return f"seed {seed}: it ended early: {s.ended}"
        if not isfinite(candidate.finals[seed]):
            return f"seed {seed}: its {s.headline} is not finite"
    return None


def _choose_among_tied(tied: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Return the preferred method and the criterion that decided."""
    if len(tied) == 1:
        return tied[0], ""
    fewest = min(c.bytes_moved for c in tied)
    frugal = [c for c in tied if c.bytes_moved <= fewest * SIMILAR_BYTES_FACTOR]
    if len(frugal) == 1:
        return frugal[0], f"it moves the fewest bytes ({format_bytes(frugal[0].bytes_moved)} per run)"
    least = min(c.kept_per_client for c in frugal)
    light = [c for c in frugal if c.kept_per_client <= least * SIMILAR_BYTES_FACTOR]
    if len(light) == 1:
        return light[0], "among those that move the fewest bytes it keeps the least state per client on the server"
    order = [*SIMPLEST_FIRST, *(name for name in REGISTRY if name not in SIMPLEST_FIRST)]
    simplest = min(light, key=lambda c: order.index(c.name) if c.name in order else len(order))
    return simplest, "it is the simplest of those that move the fewest bytes and keep the least state on the server"


def _explain_choice(
    choice: Candidate, reason: str, tied: Sequence[Candidate], eligible: Sequence[Candidate], metric: str
) -> str:
    """Explain in one sentence why a method is recommended."""
    seeds = len(choice.summaries)
    over = f"{seeds} seeds" if seeds > 1 else "one seed"
    if len(tied) > 1:
        *names, last = [c.label for c in tied]
        noise = "the differences are noise" if seeds > 1 else "a difference cannot be told from noise"
        return f"a tie between {', '.join(names)} and {last}: over {over} {noise}. Take {choice.label}: {reason}"
    if len(eligible) == 1:
        return f"take {choice.label}: no other method can be recommended"
    return f"take {choice.label}: its {metric} is the best over {over}, and every other is worse by more than noise"


def recommendation_json(advice: Recommendation) -> dict[str, object]:
    """Return the recommendation and the numbers of each method, for JSON."""
    methods = []
    for c in advice.ranked:
        gap = advice.differences.get(c.label)
        difference = None if gap is None else {"mean": gap.mean, "low": gap.low, "high": gap.high, "seeds": gap.seeds}
        methods.append(
            {
                "method": c.label,
                "final": c.mean if c.summaries else None,
                "by_seed": c.finals,
                "difference": difference,
                "verdict": _verdict(advice, c.label),
                "out": advice.excluded.get(c.label),
                "bytes_moved": c.bytes_moved if c.summaries else None,
                "kept_per_client": c.kept_per_client if c.summaries else None,
            }
        )
    names = ("recommended", "best", "tied", "why", "metric", "seeds")
    return {**{name: getattr(advice, name) for name in names}, "methods": methods}


def _verdict(advice: Recommendation, label: str) -> str:
    """Return "best", "tied", "worse" or "out"."""
    if label in advice.excluded:
        return "out"
    if label == advice.best:
        return "best"
    return "tied" if label in advice.tied else "worse"


def recommendation_table(advice: Recommendation) -> list[list[str]]:
    """Return headings and one line per method, best first."""
    rows = [["method", f"final {advice.metric}", "to the best [95 %]", "moved", "state per client", "verdict"]]
    for c in advice.ranked:
        gap = advice.differences.get(c.label)
        difference = MISSING if gap is None else f"{gap.mean:+.3f}"
        if gap is not None and not isnan(gap.half):
            difference += f" [{gap.low:+.3f}, {gap.high:+.3f}]"
        sizes = format_bytes(c.bytes_moved), format_bytes(c.kept_per_client)
        verdict = "excluded" if c.label in advice.excluded else _verdict(advice, c.label)
        rows.append([c.label, f"{c.mean:.3f}", difference, *sizes, verdict])
    return rows


def judge_comparison(comparison: Comparison) -> Recommendation:
    """Apply the rule to the finished runs of a comparison."""
    summaries, candidates, faulty_updates = comparison.finished(), [], False
    for label in comparison.strategies():
        experiment = comparison.runs(label)[0].experiment()
        faulty_updates |= any(isinstance(fault, ResultFault) for fault in experiment.faults)
        about: About | None = getattr(experiment.strategy, "about", None)
        name = name_of("strategy", experiment.strategy)
        candidates.append(Candidate(label, name, about, summaries.get(label, {})))
    return recommend(candidates, faulty_updates)


@dataclass(frozen=True)
class TournamentPlan:
    """Number of seeds and length of the runs."""

    seeds: int
    until: Until
    expected: float | None  # host seconds; None: not measured
    shortened: float = 1.0  # length of the runs as a share of the requested length


def without_target(experiment: Experiment) -> Experiment:
    """Return the experiment without the end at its target, where all methods would be equally good."""
    until = experiment.until
    if until.target is None:
        return experiment
    return replace(experiment, until=replace(until, target=None), target=until.target)  # its time is still reported


def default_methods(experiment: Experiment) -> list[str]:
    """Return one method of each kind, with a buffer that fits the number of clients."""
    k = max(2, min(10, experiment.clients // 4))
    return ["fedavg", "fedasync", f"fedbuff(k={k})", "fedat", "orthofl"]


def estimate_run_seconds(experiment: Experiment, patience: float = TRIAL_SECONDS) -> float:
    """Return the host seconds that a run takes, extrapolated from a temporary run of `patience` seconds."""
    started, first, share = time.monotonic(), None, 0.0

    def watch(status: Status) -> bool:
        """Record the progress, and stop the run when the time is over."""
        nonlocal first, share
        now = time.monotonic()
        first, share = now if first is None else first, max(share, status.share)
        return now - first > patience

    with tempfile.TemporaryDirectory(prefix="offbeat-which-") as folder:
        outcome = execute_run(create_run(Path(folder) / "trial", experiment), watch)
    seconds = time.monotonic() - (started if first is None else first)
    finished = outcome is None or outcome.reason != INTERRUPTED
    return seconds if finished else seconds / max(share, 1e-4)


def plan_tournament(
    experiments: Mapping[str, Experiment],
    budget: float,
    seeds: int | None = None,
    fixed: bool = False,
    run_seconds: float | None = None,
    cores: int | None = None,
) -> TournamentPlan:
    """Choose the number of seeds and the length of the runs for a budget in host seconds.

    `seeds` is the requested number, `fixed` forbids shorter runs, `run_seconds` is the measured duration of a run.
    """
    until = next(iter(experiments.values())).until
    if run_seconds is None or (seeds is not None and fixed):
        return TournamentPlan(seeds or MAX_SEEDS, until, None)
    parallel_runs = max(1, min(cores or cores_of(INLINE), len(experiments)))
    seconds_per_seed = run_seconds * len(experiments) / parallel_runs
    available = max(budget - OVERHEAD_SECONDS, budget / 2)
    count = seeds or max(MIN_SEEDS, min(MAX_SEEDS, int(available / seconds_per_seed)))
    share = 1.0 if fixed else min(1.0, available / (seconds_per_seed * count))
    if share < 1:
        seconds = None if until.seconds is None else float(f"{until.seconds * share:.2g}")
        until = Until(seconds=seconds, updates=None if until.updates is None else max(1, int(until.updates * share)))
    return TournamentPlan(count, until, OVERHEAD_SECONDS + seconds_per_seed * count * share, share)


def with_end(experiment: Experiment, until: Until) -> Experiment:
    """Return the experiment with another end, and the default evaluation grid if its own is too coarse for it."""
    every = experiment.evaluate_every
    if every is not None and until.seconds is not None and every > until.seconds / 4:
        every = None
    return replace(experiment, until=until, evaluate_every=every)
