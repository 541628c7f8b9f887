"""Caveats about a result: reasons to doubt its numbers, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from statistics import fmean, stdev

from offbeat.core.errors import format_count
from offbeat.metrics import UNFINISHED, Summary
from offbeat.results.series import FigureSeries, MethodRuns

FREQUENT_SHARE = 0.1  # failures are reported from this share of all jobs on
NORMAL_ENDS = ("seconds", "updates", "target")  # reasons for which a run ends as planned
MAX_LISTED_CLIENTS = 5


def find_warnings(series: FigureSeries) -> list[str]:
    """Return all caveats about the shown runs, the most serious first."""
    runs_by_text: dict[str, list[str]] = {}  # equal caveats about several runs are merged
    for method in series.methods:
        for number, seed in enumerate(method.seeds):
            run = f"{method.name}, seed {seed}" if len(method.seeds) > 1 else method.name
            for text in _run_warnings(series, method, number):
                runs_by_text.setdefault(text, []).append(run)
    by_run = [f"{'; '.join(runs)}: {text}" for text, runs in runs_by_text.items()]
    return [*by_run, *_comparison_warnings(series)]


def _run_warnings(series: FigureSeries, method: MethodRuns, number: int) -> Iterator[str]:
    """Yield the caveats about one run."""
    s, curves = method.summaries[number], method.curves[number]
    if s.ended == UNFINISHED:
        yield f"not finished; these are the results after {s.seconds:.0f} seconds"
    elif s.ended not in NORMAL_ENDS:
        yield f"ended early, after {s.seconds:.0f} seconds: {s.ended}"
    values = [v for v in curves.values.get(s.headline, ()) if isfinite(v)]
    if not s.updates:
        yield "learned nothing: no update was accepted"
    elif len(values) > 1:
        improved = max(values[1:]) > values[0] if s.higher(s.headline) else min(values[1:]) < values[0]
        if not improved:
            yield f"learned nothing: {s.headline} was never better than at the start ({values[0]:.3f})"
    if failures := _describe_failures(s):
        yield failures
    target = series.target
    if target is not None and target.metric in curves.values:
        points = zip(curves.seconds, curves.values[target.metric], strict=True)
        times = [now for now, v in points if target.reached({target.metric: v})]
        if len(times) == 1 and times[0] != curves.seconds[-1]:  # at the end the next points are unknown
            yield f"reached the target {target} at a single evaluation only ({times[0]:.0f} s)"
    silent = [client for client in series.clients if not method.accepted[number].get(client)]
    if not method.pooled and 0 < len(silent) < len(series.clients):  # with none at all, another caveat says so
        names = ", ".join(series.client_name(client) for client in silent[:MAX_LISTED_CLIENTS])
        more = f" and {len(silent) - MAX_LISTED_CLIENTS} more" if len(silent) > MAX_LISTED_CLIENTS else ""
        clients = format_count(len(silent), "client")
        yield f"no update of {clients} was accepted, so the model did not learn from their data: {names}{more}"


def _describe_failures(s: Summary) -> str:
    """Describe frequent failures of jobs in one sentence; empty if there are none."""
    refused = sum(s.refused.values())
    jobs = s.updates + s.rejected + refused + s.lost
    threshold = FREQUENT_SHARE * max(1, jobs)
    counts = {"refused by the gate": refused, "rejected by the strategy": s.rejected, "lost": s.lost}
    parts = [f"{count} of {jobs} jobs were {outcome}" for outcome, count in counts.items() if count >= threshold]
    if refused >= threshold:
        parts.append(f"most often refused for {max(s.refused, key=s.refused.__getitem__)}")
    return ", ".join(parts)


def _comparison_warnings(series: FigureSeries) -> Iterator[str]:
    """Yield the caveats about the comparison of the runs."""
    single = [method.name for method in series.methods if len(method.seeds) == 1]
    if single:
        methods = "" if len(single) == len(series.methods) else f" of {', '.join(single)}"
        yield f"only one seed{methods}: another seed may reverse differences"
    finals = {
        m.name: [s.metrics[series.metric] for s in m.summaries if series.metric in s.metrics] for m in series.methods
    }
    usable = {name: values for name, values in finals.items() if len(values) > 1 and all(map(isfinite, values))}
    if len(usable) > 1:
        best, second = sorted(usable, key=lambda name: fmean(usable[name]), reverse=series.higher)[:2]
        gap = abs(fmean(usable[best]) - fmean(usable[second]))
        deviation = max(stdev(usable[best]), stdev(usable[second]))
        if gap < deviation:
            yield (
                f"no clear winner: the final {series.metric} of {best} and {second} differs by {gap:.3f}, "
                f"less than the seed-to-seed SD of {deviation:.3f}"
            )
    workers = sorted({s.worker for m in series.methods for s in m.summaries if s.worker is not None})
    if len(workers) > 1:
        yield f"computed by different workers: {', '.join(workers)}"
