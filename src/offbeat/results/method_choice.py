"""Which method to take, from a comparison, by one stated rule.

The best is the one with the best mean of the metric a table shows, at the end of the runs. Tied with it is every method
whose paired 95 % interval against it includes 0: over these seeds the difference is noise. Among those who are tied
the one that moves the fewest bytes is taken, then the one that keeps the least of each client on the server, then the
simplest. Bytes within a twentieth of each other are the same. A method is out of it if any of its runs learned nothing,
ended early, had to fall back to an earlier model, or had updates refused that the world itself had not spoilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from offbeat.core.about import About
from offbeat.core.strategies import REGISTRY
from offbeat.metrics.intervals import Interval, paired
from offbeat.metrics.trace_summary import UNFINISHED, Summary, size
from offbeat.results.result_warnings import ORDERLY

ALIKE = 1.05  # bytes up to so many times the least are the same
# what is easiest to run and to explain first; the others follow in the order of the registry
SIMPLE = ("fedavg", "fedprox", "fedasync", "fedbuff", "local", "fedavgm", "fedadam", "fedat")


@dataclass(frozen=True)
class Candidate:
    """A method in the tournament."""

    label: str
    name: str  # in the registry, or of one's own file
    about: About | None
    found: Mapping[int, Summary]  # by seed

    @property
    def finals(self) -> dict[int, float]:
        return {seed: s.metrics.get(s.headline, float("nan")) for seed, s in self.found.items()}

    @property
    def mean(self) -> float:
        return fmean(self.finals.values())

    @property
    def moved(self) -> float:
        return fmean(s.bytes_down + s.bytes_up for s in self.found.values())

    @property
    def kept(self) -> float:
        """Bytes on the server for each client."""
        if self.about is not None and self.about.keeps.startswith("nothing"):
            return 0.0
        held = fmean(s.server_bytes / max(1, s.clients) for s in self.found.values())
        return held if isfinite(held) else 0.0

    @property
    def simplicity(self) -> int:
        order = [*SIMPLE, *(name for name in REGISTRY if name not in SIMPLE)]
        return order.index(self.name) if self.name in order else len(order)


@dataclass(frozen=True)
class Advice:
    metric: str
    higher: bool
    seeds: list[int]
    ranked: list[Candidate]  # best first, those that are out of it last
    out: dict[str, str]  # label -> why
    differences: dict[str, Interval]  # label -> to the best
    tied: list[str]  # the best and whoever cannot be told from it
    taken: str | None
    why: str

    @property
    def best(self) -> str | None:
        return self.tied[0] if self.tied else None


def give(candidates: Sequence[Candidate], spoilt: bool = False) -> Advice:
    """`spoilt`: the world itself damages updates, so that refusals are not the methods' fault. Seeds that not all have
    finished are left out.
    """
    finished = [c for c in candidates if c.found]
    seeds = sorted(set.intersection(*(set(c.found) for c in candidates))) if finished else []
    same = [Candidate(c.label, c.name, c.about, {seed: c.found[seed] for seed in seeds}) for c in candidates]
    if not seeds:
        return Advice("", True, [], list(candidates), {}, {}, [], None, "no seed is finished for every method yet")
    first = same[0].found[seeds[0]]
    metric, higher = first.headline, first.higher(first.headline)
    out = {c.label: reason for c in same if (reason := _out(c, spoilt)) is not None}
    able = sorted((c for c in same if c.label not in out), key=lambda c: c.mean, reverse=higher)
    ranked = [*able, *(c for c in same if c.label in out)]
    if not able:
        why = "no method can be recommended: " + "; ".join(f"{label}: {reason}" for label, reason in out.items())
        return Advice(metric, higher, seeds, ranked, out, {}, [], None, why)
    best = able[0]
    differences = {c.label: paired(c.finals, best.finals) for c in able[1:]}
    tied = [best, *(c for c in able[1:] if not differences[c.label].excludes_zero)]
    taken, reason = _choose(tied)
    why = _why(taken, reason, tied, able, len(seeds), metric)
    return Advice(metric, higher, seeds, ranked, out, differences, [c.label for c in tied], taken.label, why)


def _out(candidate: Candidate, spoilt: bool) -> str | None:
    """Why a method is not recommended, whatever its numbers are."""
    for seed, s in candidate.found.items():
        if s.nothing is not None:
            return f"seed {seed}: {s.nothing.lower()}"
        refused = sum(s.refused.values())
        if refused and not spoilt:
            return f"seed {seed}: {refused} of its updates were refused, most for {next(iter(s.refused))}"
        if s.ended not in ORDERLY and s.ended != UNFINISHED:
            return f"seed {seed}: it ended early: {s.ended}"
        if not isfinite(candidate.finals[seed]):
            return f"seed {seed}: its {s.headline} is no number"
    return None


def _choose(tied: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Of those that cannot be told apart, and by what it was decided."""
    if len(tied) == 1:
        return tied[0], ""
    least = min(c.moved for c in tied)
    frugal = [c for c in tied if c.moved <= least * ALIKE]
    if len(frugal) == 1:
        return frugal[0], f"it moves the fewest bytes ({size(frugal[0].moved)} a run)"
    least = min(c.kept for c in frugal)
    light = [c for c in frugal if c.kept <= least * ALIKE]
    if len(light) == 1:
        return light[0], "of those that move as few bytes it keeps the least of each client on the server"
    simplest = min(light, key=lambda c: c.simplicity)
    return simplest, "it is the simplest of those that move as few bytes and keep as little on the server"


def _why(
    taken: Candidate, reason: str, tied: Sequence[Candidate], able: Sequence[Candidate], seeds: int, metric: str
) -> str:
    over = f"{seeds} seeds" if seeds > 1 else "one seed"
    if len(tied) > 1:
        names = [c.label for c in tied]
        between = f"{', '.join(names[:-1])} and {names[-1]}"
        noise = "the differences are noise" if seeds > 1 else "one seed cannot tell noise from a difference"
        return f"a tie between {between}: over {over} {noise}. Take {taken.label}: {reason}"
    if len(able) == 1:
        return f"take {taken.label}: no other method can be recommended"
    return f"take {taken.label}: its {metric} is the best over {over}, and every other is worse by more than noise"


def plain(advice: Advice) -> dict[str, Any]:
    """For JSON."""
    rows = []
    for c in advice.ranked:
        gap = advice.differences.get(c.label)
        told = None if gap is None else {"mean": gap.mean, "low": gap.low, "high": gap.high, "seeds": gap.seeds}
        rows.append(
            {
                "method": c.label,
                "final": c.mean if c.found else None,
                "by_seed": c.finals,
                "difference": told,
                "verdict": verdict(advice, c.label),
                "out": advice.out.get(c.label),
                "bytes_moved": c.moved if c.found else None,
                "kept_per_client": c.kept if c.found else None,
            }
        )
    return {
        "recommended": advice.taken,
        "best": advice.best,
        "tied": advice.tied,
        "why": advice.why,
        "metric": advice.metric,
        "seeds": advice.seeds,
        "methods": rows,
    }


def verdict(advice: Advice, label: str) -> str:
    if label in advice.out:
        return "out"
    if label == advice.best:
        return "best"
    return "tied" if label in advice.tied else "worse"


def table(advice: Advice) -> list[list[str]]:
    """Best first."""
    rows = [["method", f"final {advice.metric}", "to the best [95 %]", "moved", "kept a client", "which is"]]
    for c in advice.ranked:
        gap = advice.differences.get(c.label)
        told = "–" if gap is None else f"{gap.mean:+.3f}"
        if gap is not None and gap.half == gap.half:
            told += f" [{gap.low:+.3f}, {gap.high:+.3f}]"
        rows.append([c.label, f"{c.mean:.3f}", told, size(c.moved), size(c.kept), verdict(advice, c.label)])
    return rows
