"""Folders as they are read: a comparison, a run or a saved simulation, as JSON, as lines of CSV, with its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError
from offbeat.experiment.comparison import MANIFEST, Comparison
from offbeat.experiment.run import run_lock
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec.config import strategy_name
from offbeat.experiment.spec.serialization import to_plain
from offbeat.metrics import intervals, measures, ranks
from offbeat.metrics.trace_summary import Summary, without_nan
from offbeat.results import report, tables
from offbeat.results.report import Report
from offbeat.results.tables import Single

PARTS = (MANIFEST, "experiment.yaml", run_lock.SCRIPTED)  # what makes a folder one that can be read


@dataclass(frozen=True)
class Compared:
    """A comparison that was read."""

    comparison: Comparison
    report: Report

    @property
    def folder(self) -> str:
        return str(self.comparison.folder)


def opened(folder: Path, reference: str | None = None) -> Compared | Single:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if (folder / MANIFEST).is_file():
        comparison = Comparison(folder)
        return Compared(comparison, report.read(comparison, reference))
    run = Run(folder)
    if not run.experiment_file.exists() and not run.scripted:
        held = sum(any((below / part).is_file() for part in PARTS) for below in folder.iterdir())
        if held:
            raise ConfigError(f"{folder} is not a run folder; to show what is in it ({held}): offbeat show {folder}/*")
    experiment = run.experiment()
    target = experiment.until.target or experiment.target
    return Single(str(folder), strategy_name(experiment), experiment.seed, run.summary(), target, run.complete)


# ---------------------------------------------------------------- JSON


def plain(item: Compared | Single) -> dict[str, Any]:
    """One folder: every measure, of a comparison every seed, interval and difference too."""
    if isinstance(item, Compared):
        return _plain_comparison(item)
    head: dict[str, Any] = {"folder": item.folder, "complete": item.complete}
    run = Run(Path(item.folder))
    return {**head, **measures.plain(item.summary), "experiment": to_plain(run.experiment())}


def _plain_comparison(item: Compared) -> dict[str, Any]:
    made = item.report
    there = {path.name: str(path) for path in (made.figure, made.page) if path.is_file()}
    going = [
        {
            "strategy": run.strategy,
            "seed": run.seed,
            "folder": run.folder,
            "begun": run.summary is not None,
            **({} if run.summary is None else without_nan(measures.values(run.summary))),
        }
        for run in made.going
    ]
    return {
        "folder": item.folder,
        "figure": there.get(made.figure.name),
        "page": there.get(made.page.name),
        "rows": [{**row.plain(), **_over_seeds(row.strategy, made)} for row in made.rows],
        "better": measures.legend(made.rows[0]) if made.rows else {},
        "reference": made.reference,
        "unfinished": going,
    }


def _over_seeds(strategy: str, made: Report) -> dict[str, Any]:
    """Of one method: each seed, the 95 % interval of each mean, and of each paired difference to the reference."""
    interval, difference = {}, {}
    for measure in measures.MEASURES:
        if measure.read is None:
            continue
        each = tables.by_seed(measure, made.found)
        interval[measure.key] = _bounds(intervals.interval(list(each[strategy].values())))
        if strategy != made.reference:
            difference[measure.key] = _bounds(intervals.paired(each[strategy], each.get(made.reference, {})))
    by_seed = {seed: measures.values(summary) for seed, summary in made.found[strategy].items()}
    return {"by_seed": without_nan(by_seed), "interval": interval, "difference": difference}


def _bounds(given: intervals.Interval) -> dict[str, Any]:
    made: dict[str, Any] = without_nan({"mean": given.mean, "low": given.low, "high": given.high})
    return {**made, "seeds": given.seeds}


def plain_ranks(made: ranks.Ranks) -> dict[str, Any]:
    methods = [{"strategy": m.name, "mean_rank": m.mean, "first": m.wins, "shared_first": m.ties} for m in made.methods]
    test: dict[str, Any] = without_nan({"friedman": made.friedman, "p": made.p})
    return {"methods": methods, **test, "not_ranked": list(made.left_out)}


def ranked(items: Sequence[Compared | Single]) -> ranks.Ranks | None:
    """Methods over the comparisons among these, by the final value; None unless two have two methods in common."""
    settings = {
        item.folder: ({row.strategy: row["final"] for row in item.report.rows}, item.report.rows[0].higher_is_better)
        for item in items
        if isinstance(item, Compared) and item.report.rows
    }
    made = ranks.over(settings) if len(settings) > 1 else None
    return made if made is not None and len(made.methods) > 1 else None


# ---------------------------------------------------------------- CSV and comments


def records(item: Compared | Single) -> Iterator[tuple[object, ...]]:
    """A line for each run and measure, as `formats.tidy` has them."""
    if isinstance(item, Single):
        yield from _records(item.folder, item.strategy, item.seed, item.complete, item.summary)
        return
    for strategy, given in item.report.found.items():
        for seed, summary in given.items():
            yield from _records(item.folder, strategy, seed, True, summary)
    for run in item.report.going:
        if run.summary is not None:
            yield from _records(item.folder, run.strategy, run.seed, False, run.summary)


def _records(
    folder: str, strategy: str, seed: int | None, finished: bool, summary: Summary
) -> Iterator[tuple[object, ...]]:
    metrics = {f"metrics.{name}": value for name, value in summary.metrics.items()}
    for key, value in {**measures.values(summary), **metrics}.items():
        yield folder, strategy, seed, finished, key, value


def digest(item: Compared | Single) -> str:
    """Equal digests mean equal runs: of a run its own, of a comparison that of all of them, in order."""
    if isinstance(item, Single):
        return Run(Path(item.folder)).digest()
    each = [run.digest() if run.trace_file.is_file() else "not begun" for _, run in item.comparison.entries()]
    return hashlib.sha256(" ".join(each).encode()).hexdigest()
