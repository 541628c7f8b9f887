"""Read run and comparison folders, and return them as JSON, CSV records or a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from offbeat import metrics
from offbeat.core.errors import ConfigError
from offbeat.experiment import MANIFEST, Comparison
from offbeat.experiment.run import SCRIPTED, Run
from offbeat.experiment.spec import strategy_name, to_values
from offbeat.results import tables
from offbeat.results.report import read_report
from offbeat.results.tables import Report, SingleRun

RESULT_MARKERS = (MANIFEST, "experiment.yaml", SCRIPTED)  # files that mark a folder as a run or a comparison


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison and its numbers."""

    comparison: Comparison
    report: Report

    @property
    def folder(self) -> str:
        """Return the path of the comparison."""
        return str(self.comparison.folder)


Result = ComparisonResult | SingleRun


def open_result(folder: Path, reference: str | None = None) -> Result:
    """Read the numbers of a run or a comparison, finished or not."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if (folder / MANIFEST).is_file():
        comparison = Comparison(folder)
        return ComparisonResult(comparison, read_report(comparison, reference))
    run = Run(folder)
    if not run.experiment_file.exists() and not run.scripted:
        inside = sum(any((below / marker).is_file() for marker in RESULT_MARKERS) for below in folder.iterdir())
        if inside:
            raise ConfigError(
                f"{folder} is not a run folder but contains {inside}; to show them: offbeat show {folder}/*"
            )
    experiment = run.experiment()
    target = experiment.until.target or experiment.target
    return SingleRun(str(folder), strategy_name(experiment), experiment.seed, run.summary(), target, run.complete)


def result_json(item: Result) -> dict[str, object]:
    """Return all measures; for a comparison also every seed, interval and difference."""
    if isinstance(item, SingleRun):
        experiment = to_values(Run(Path(item.folder)).experiment())
        head = {"folder": item.folder, "complete": item.complete}
        return {**head, **metrics.summary_json(item.summary), "experiment": experiment}
    report = item.report
    unfinished = [
        {
            "strategy": run.strategy,
            "seed": run.seed,
            "folder": run.folder,
            "begun": run.summary is not None,
            **({} if run.summary is None else metrics.json_object(metrics.measure_values(run.summary))),
        }
        for run in report.unfinished
    ]
    return {
        "folder": item.folder,
        "figure": str(report.figure) if report.figure.is_file() else None,
        "page": str(report.page) if report.page.is_file() else None,
        "rows": [{**row.as_json(), **_seed_statistics_json(row.strategy, report)} for row in report.rows],
        "better": metrics.better_by_key(report.rows[0]) if report.rows else {},
        "reference": report.reference,
        "unfinished": unfinished,
    }


def _seed_statistics_json(strategy: str, report: Report) -> dict[str, object]:
    """Return each seed of a method, and the interval of each mean and each paired difference to the reference."""
    intervals, differences = {}, {}
    for measure in metrics.MEASURES:
        if measure.read is None:
            continue
        values = tables.values_by_seed(measure, report.summaries)
        intervals[measure.key] = _interval_json(metrics.confidence_interval(list(values[strategy].values())))
        if strategy != report.reference:
            difference = metrics.paired_difference(values[strategy], values.get(report.reference, {}))
            differences[measure.key] = _interval_json(difference)
    by_seed = {seed: metrics.measure_values(summary) for seed, summary in report.summaries[strategy].items()}
    return {"by_seed": metrics.json_object(by_seed), "interval": intervals, "difference": differences}


def _interval_json(interval: metrics.Interval) -> dict[str, object]:
    """Return mean, bounds and number of seeds."""
    return metrics.json_object(
        {"mean": interval.mean, "low": interval.low, "high": interval.high, "seeds": interval.seeds}
    )


def ranks_json(ranks: metrics.Ranks) -> dict[str, object]:
    """Return the mean rank of each method and the Friedman test."""
    methods = [
        {"strategy": m.name, "mean_rank": m.mean, "first": m.wins, "shared_first": m.ties} for m in ranks.methods
    ]
    test = metrics.json_object({"friedman": ranks.friedman, "p": ranks.p})
    return {"methods": methods, **test, "not_ranked": list(ranks.left_out)}


def rank_results(items: Sequence[Result]) -> metrics.Ranks | None:
    """Rank methods by the final value over all comparisons; None unless several share at least two methods."""
    settings = {
        item.folder: ({row.strategy: row["final"] for row in item.report.rows}, item.report.rows[0].higher_is_better)
        for item in items
        if isinstance(item, ComparisonResult) and item.report.rows
    }
    ranks = metrics.rank_methods(settings) if len(settings) > 1 else None
    return ranks if ranks is not None and len(ranks.methods) > 1 else None


def csv_records(item: Result) -> Iterator[tuple[object, ...]]:
    """Yield one record per run and measure, for `table_formats.to_csv`."""
    runs: list[tuple[str, int | None, bool, metrics.Summary]]
    if isinstance(item, SingleRun):
        runs = [(item.strategy, item.seed, item.complete, item.summary)]
    else:
        finished = item.report.summaries.items()
        runs = [(name, seed, True, summary) for name, by_seed in finished for seed, summary in by_seed.items()]
        unfinished = item.report.unfinished
        runs += [(run.strategy, run.seed, False, run.summary) for run in unfinished if run.summary is not None]
    for strategy, seed, complete, summary in runs:
        finals = {f"metrics.{name}": value for name, value in summary.metrics.items()}
        for key, value in {**metrics.measure_values(summary), **finals}.items():
            yield item.folder, strategy, seed, complete, key, value


def result_digest(item: Result) -> str:
    """Return the digest of a run, or of all runs of a comparison in order: equal digests mean equal runs."""
    if isinstance(item, SingleRun):
        return Run(Path(item.folder)).digest()
    digests = [run.digest() if run.trace_file.is_file() else "not begun" for _, run in item.comparison.entries()]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
