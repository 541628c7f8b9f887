"""What is not to be trusted about a result, in sentences: for a page, and for whoever asks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import isfinite
from statistics import fmean, stdev

from offbeat.engine.until import Target
from offbeat.metrics.trace_summary import Summary
from offbeat.results.series import Course, Method, Series

MANY = 0.1  # of all jobs: from here on what went wrong is worth a sentence
ORDERLY = ("seconds", "updates", "target")  # how a run ends that came to its end
NAMED = 5  # clients


def of(series: Series) -> list[str]:
    """Of everything that is shown, the gravest first."""
    found = [line for method in series.methods for line in _of_runs(series, method)]
    return _grouped(found) + _few_seeds(series) + _close(series) + _made_differently(series)


def _of_runs(series: Series, method: Method) -> list[tuple[str, str]]:
    """(who, what) of each run alone."""
    several = len(method.seeds) > 1
    told = []
    for number, seed in enumerate(method.seeds):
        who = f"{method.name}, seed {seed}" if several else method.name
        told += [(who, line) for line in of_run(method.summaries[number], method.courses[number], series.target)]
        told += [(who, line) for line in _never_heard(series, method, number)]
    return told


def of_run(summary: Summary, course: Course, target: Target | None) -> list[str]:
    """Of one run alone."""
    checks = (_ended(summary), _learned(summary, course), _in_vain(summary), _one_point(course, target))
    return [line for line in checks if line]


def _ended(s: Summary) -> str | None:
    if s.ended == "not finished":
        return f"is not finished: this is what there is after {s.seconds:.0f} seconds"
    return None if s.ended in ORDERLY else f"ended early, after {s.seconds:.0f} seconds: {s.ended}"


def _learned(s: Summary, course: Course) -> str | None:
    if not s.updates:
        return "learned nothing: no update was accepted"
    values = [v for v in course.values.get(s.headline, ()) if isfinite(v)]
    if len(values) < 2:
        return None
    better = max(values[1:]) > values[0] if s.higher(s.headline) else min(values[1:]) < values[0]
    return None if better else f"learned nothing: {s.headline} was never better than at the start, {values[0]:.3f}"


def _in_vain(s: Summary) -> str | None:
    refused = sum(s.refused.values())
    jobs = s.updates + s.rejected + refused + s.lost
    kinds = {"refused by the gate": refused, "rejected by the strategy": s.rejected, "lost": s.lost}
    many = [f"{count} of {jobs} jobs were {how}" for how, count in kinds.items() if count >= MANY * max(1, jobs)]
    if refused >= MANY * max(1, jobs):
        many.append(f"most often for {max(s.refused, key=s.refused.__getitem__)}")
    return ", ".join(many) or None


def _one_point(course: Course, target: Target | None) -> str | None:
    if target is None or target.metric not in course.values:
        return None
    values = course.values[target.metric]
    met = [now for now, v in zip(course.seconds, values, strict=True) if target.reached({target.metric: v})]
    if len(met) != 1 or met[0] == course.seconds[-1]:  # at the very end nobody knows what would have come
        return None
    return f"met the target {target} at one point of the grid only, {met[0]:.0f} s"


def _never_heard(series: Series, method: Method, number: int) -> list[str]:
    if method.pooled:
        return []
    silent = [client for client in series.clients if not method.heard[number].get(client)]
    if not silent or len(silent) == len(series.clients):  # then nothing was learned, and that is told
        return []
    named = ", ".join(series.name(client) for client in silent[:NAMED])
    more = f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
    whom = "1 client was" if len(silent) == 1 else f"{len(silent)} clients were"
    return [f"{whom} never heard, whose data nothing was learned from: {named}{more}"]


def _few_seeds(series: Series) -> list[str]:
    single = [method.name for method in series.methods if len(method.seeds) == 1]
    if not single:
        return []
    whose = "one seed only" if len(single) == len(series.methods) else f"one seed only of {', '.join(single)}"
    return [f"{whose}: another seed may turn differences around"]


def _close(series: Series) -> list[str]:
    """The best two, if seeds differ by more than they do."""
    finals = {
        m.name: [s.metrics[series.metric] for s in m.summaries if series.metric in s.metrics] for m in series.methods
    }
    usable = {name: each for name, each in finals.items() if len(each) > 1 and all(map(isfinite, each))}
    ranked = sorted(usable, key=lambda name: fmean(usable[name]), reverse=series.higher)
    for best, next_best in combinations(ranked[:2], 2):
        gap = abs(fmean(usable[best]) - fmean(usable[next_best]))
        noise = max(stdev(usable[best]), stdev(usable[next_best]))
        if gap < noise:
            return [
                f"{best} and {next_best} are nearly equal: their final {series.metric} differs by {gap:.3f}, "
                f"while seeds of one differ by {noise:.3f} (standard deviation)"
            ]
    return []


def _made_differently(series: Series) -> list[str]:
    workers = sorted({s.worker for m in series.methods for s in m.summaries if s.worker is not None})
    return [f"computed by different workers: {', '.join(workers)}"] if len(workers) > 1 else []


def _grouped(told: Sequence[tuple[str, str]]) -> list[str]:
    """What holds of several is said once."""
    whose: dict[str, list[str]] = {}
    for who, what in told:
        whose.setdefault(what, []).append(who)
    return [f"{'; '.join(who)}: {what}" for what, who in whose.items()]
