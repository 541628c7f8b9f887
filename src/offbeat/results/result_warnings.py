"""Caveats about a result: reasons to doubt its numbers, as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import fmean, stdev

from offbeat.engine import Target
from offbeat.metrics import UNFINISHED, Summary
from offbeat.results.series import FigureSeries, MethodRuns, RunCurves

FREQUENT_SHARE = 0.1  # failures are reported from this share of all jobs on
NORMAL_ENDS = ("seconds", "updates", "target")  # reasons for which a run ends as planned
MAX_LISTED_CLIENTS = 5


def find_warnings(series: FigureSeries) -> list[str]:
    """Return all caveats about the shown runs, the most serious first."""
    by_run = [pair for method in series.methods for pair in _warnings_by_run(series, method)]
    return _group_by_text(by_run) + _single_seeds(series) + _no_clear_winner(series) + _several_workers(series)


def _warnings_by_run(series: FigureSeries, method: MethodRuns) -> list[tuple[str, str]]:
    """Return pairs of run and caveat."""
    pairs = []
    for number, seed in enumerate(method.seeds):
        run = f"{method.name}, seed {seed}" if len(method.seeds) > 1 else method.name
        lines = run_warnings(method.summaries[number], method.curves[number], series.target)
        pairs += [(run, line) for line in [*lines, *_clients_without_updates(series, method, number)]]
    return pairs


def run_warnings(summary: Summary, curves: RunCurves, target: Target | None) -> list[str]:
    """Return the caveats about one run."""
    checks = (
        _early_end(summary),
        _nothing_learned(summary, curves),
        _mostly_rejected(summary),
        _target_reached_once(curves, target),
    )
    return [line for line in checks if line]


def _early_end(s: Summary) -> str | None:
    if s.ended == UNFINISHED:
        return f"not finished; these are the results after {s.seconds:.0f} seconds"
    return None if s.ended in NORMAL_ENDS else f"ended early, after {s.seconds:.0f} seconds: {s.ended}"


def _nothing_learned(s: Summary, curves: RunCurves) -> str | None:
    if not s.updates:
        return "learned nothing: no update was accepted"
    values = [v for v in curves.values.get(s.headline, ()) if isfinite(v)]
    if len(values) < 2:
        return None
    better = max(values[1:]) > values[0] if s.higher(s.headline) else min(values[1:]) < values[0]
    return None if better else f"learned nothing: {s.headline} was never better than at the start ({values[0]:.3f})"


def _mostly_rejected(s: Summary) -> str | None:
    refused = sum(s.refused.values())
    jobs = s.updates + s.rejected + refused + s.lost
    threshold = FREQUENT_SHARE * max(1, jobs)
    counts = {"refused by the gate": refused, "rejected by the strategy": s.rejected, "lost": s.lost}
    parts = [f"{count} of {jobs} jobs were {outcome}" for outcome, count in counts.items() if count >= threshold]
    if refused >= threshold:
        parts.append(f"most often refused for {max(s.refused, key=s.refused.__getitem__)}")
    return ", ".join(parts) or None


def _target_reached_once(curves: RunCurves, target: Target | None) -> str | None:
    if target is None or target.metric not in curves.values:
        return None
    values = curves.values[target.metric]
    times = [now for now, v in zip(curves.seconds, values, strict=True) if target.reached({target.metric: v})]
    if len(times) != 1 or times[0] == curves.seconds[-1]:  # at the end the next points are unknown
        return None
    return f"reached the target {target} at a single evaluation only ({times[0]:.0f} s)"


def _clients_without_updates(series: FigureSeries, method: MethodRuns, number: int) -> list[str]:
    if method.pooled:
        return []
    silent = [client for client in series.clients if not method.accepted[number].get(client)]
    if not silent or len(silent) == len(series.clients):  # with none at all, another caveat says so
        return []
    names = ", ".join(series.client_name(client) for client in silent[:MAX_LISTED_CLIENTS])
    more = f" and {len(silent) - MAX_LISTED_CLIENTS} more" if len(silent) > MAX_LISTED_CLIENTS else ""
    clients = "1 client" if len(silent) == 1 else f"{len(silent)} clients"
    return [f"no update of {clients} was accepted, so the model did not learn from their data: {names}{more}"]


def _single_seeds(series: FigureSeries) -> list[str]:
    single = [method.name for method in series.methods if len(method.seeds) == 1]
    if not single:
        return []
    methods = "" if len(single) == len(series.methods) else f" of {', '.join(single)}"
    return [f"only one seed{methods}: another seed may reverse differences"]


def _no_clear_winner(series: FigureSeries) -> list[str]:
    """Return a caveat if the best two methods differ by less than the seeds of one of them."""
    finals = {
        m.name: [s.metrics[series.metric] for s in m.summaries if series.metric in s.metrics] for m in series.methods
    }
    usable = {name: values for name, values in finals.items() if len(values) > 1 and all(map(isfinite, values))}
    if len(usable) < 2:
        return []
    best, second = sorted(usable, key=lambda name: fmean(usable[name]), reverse=series.higher)[:2]
    gap = abs(fmean(usable[best]) - fmean(usable[second]))
    deviation = max(stdev(usable[best]), stdev(usable[second]))
    if gap >= deviation:
        return []
    return [
        f"no clear winner: the final {series.metric} of {best} and {second} differs by {gap:.3f}, "
        f"less than the seed-to-seed SD of {deviation:.3f}"
    ]


def _several_workers(series: FigureSeries) -> list[str]:
    workers = sorted({s.worker for m in series.methods for s in m.summaries if s.worker is not None})
    return [f"computed by different workers: {', '.join(workers)}"] if len(workers) > 1 else []


def _group_by_text(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Merge equal caveats about several runs."""
    runs_by_text: dict[str, list[str]] = {}
    for run, text in pairs:
        runs_by_text.setdefault(text, []).append(run)
    return [f"{'; '.join(runs)}: {text}" for text, runs in runs_by_text.items()]
