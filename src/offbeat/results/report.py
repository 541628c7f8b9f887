"""Numbers, figure and page of a comparison, and the figure or page of any run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from offbeat.core.errors import ConfigError, DataError, RunError
from offbeat.experiment import ClassCounts, Comparison
from offbeat.experiment.run import Run
from offbeat.experiment.spec import strategy_name
from offbeat.metrics import MISSING, MethodRow, TablePlace, average_over_seeds, measure_table
from offbeat.results import figures, page
from offbeat.results.page import PageContent, TableCells
from offbeat.results.result_warnings import find_warnings
from offbeat.results.series import FigureSeries, collect_series
from offbeat.results.tables import Report, UnfinishedRun

FIGURE, PAGE = "figure.png", "report.html"  # in the comparison's folder; the page is written last
PAGE_SUFFIX = ".html"  # other suffixes are figures
TABLE_PLACES: tuple[TablePlace, ...] = ("table", "page")


def read_report(comparison: Comparison, reference: str | None = None) -> Report:
    """Read the numbers of a comparison, without writing its figure and page."""
    summaries, entries = comparison.finished(), comparison.entries()
    planned: dict[str, list[int]] = {}
    for entry, _ in entries:
        planned.setdefault(entry["strategy"], []).append(entry["seed"])
    unfinished = [
        UnfinishedRun(e["strategy"], e["seed"], e["folder"], run.summary() if run.trace_file.is_file() else None)
        for e, run in entries
        if e["seed"] not in summaries.get(e["strategy"], {})  # it may have finished since
    ]
    experiment = entries[0][1].experiment()  # all have the same target
    return Report(
        comparison.rows(reference, summaries),
        summaries,
        planned,
        comparison.checked(reference),
        experiment.until.target or experiment.target,
        unfinished,
        comparison.folder / FIGURE,
        comparison.folder / PAGE,
    )


def write_report(comparison: Comparison, reference: str | None = None) -> Report:
    """Read the numbers of a comparison, and write its figure and page."""
    report = read_report(comparison, reference)
    write_figure_and_page(comparison, report)
    return report


def write_figure_and_page(comparison: Comparison, report: Report) -> None:
    """Write the figure, the partition heat map and the page of a finished comparison."""
    series = comparison_series(comparison)
    figures.save_figure(series, report.figure)
    class_counts = try_class_counts(series.methods[0].runs[0], runs_code=True)  # the runs have executed it already
    if class_counts is not None:
        figures.save_heatmap(class_counts, comparison.folder / "partition.png")
    page.save_page(series, _page_content(series, report.rows, report.reference, class_counts), report.page)


def draw_figure_or_page(result: Comparison | Run, path: Path, kind: str = "all", reference: str | None = None) -> None:
    """Write a figure or the page of a result, finished or not; the suffix of the path selects which."""
    if isinstance(result, Comparison):
        result.checked(reference)  # fails before anything is read
    series = comparison_series(result) if isinstance(result, Comparison) else run_series(result)
    if path.suffix.lower() != PAGE_SUFFIX:
        figures.save_figure(series, path, kind)
        return
    class_counts = try_class_counts(series.methods[0].runs[0])
    page.save_page(series, page_content(result, series, reference, class_counts), path)


def comparison_series(comparison: Comparison) -> FigureSeries:
    """Read what the figures of a comparison draw."""
    return collect_series({name: comparison.runs(name) for name in comparison.strategies()})


def run_series(run: Run) -> FigureSeries:
    """Read what the figures of a run draw."""
    return collect_series({strategy_name(run.experiment()): [run]})


def try_class_counts(run: Run, runs_code: bool = False) -> ClassCounts | None:
    """Return None if the data is missing, or comes from user code that must not run: the page works without it."""
    try:
        return run.class_counts(runs_code)
    except (DataError, ConfigError, RunError):
        return None


def page_content(
    result: Comparison | Run | None,
    series: FigureSeries,
    reference: str | None = None,
    class_counts: ClassCounts | None = None,
) -> PageContent:
    """Return the tables and texts of a page; `result` is None for runs shown side by side."""
    if isinstance(result, Comparison) and all(run.complete for _, run in result.entries()):
        return _page_content(series, result.rows(reference), result.checked(reference), class_counts)
    rows = [average_over_seeds(m.name, m.summaries, {}) for m in series.methods]
    content = _page_content(series, rows, None, class_counts)
    return replace(content, tables=[_without_empty_columns(table) for table in content.tables])


def _page_content(
    series: FigureSeries, rows: Sequence[MethodRow], reference: str | None, class_counts: ClassCounts | None
) -> PageContent:
    """Return tables of these rows, a table of all runs, and the texts of a page."""
    tables = [measure_table(rows, series.target, place, arrows=True) for place in TABLE_PLACES]
    runs = [
        (average_over_seeds(f"{method.name}, seed {seed}", [summary], {}), summary.ended)
        for method in series.methods
        for seed, summary in zip(method.seeds, method.summaries, strict=True)
    ]
    by_run = measure_table([row for row, _ in runs], series.target)
    ends = ["ended", *(ended for _, ended in runs)]
    by_run = _without_empty_columns([[*row, end] for row, end in zip(by_run, ends, strict=True)])
    data = series.methods[0].summaries[0].data
    return PageContent(find_warnings(series), tables, by_run, reference, data, class_counts)


def _without_empty_columns(table: TableCells) -> TableCells:
    """Remove the columns in which every value is missing."""
    columns = [column for column in zip(*table, strict=True) if any(cell != MISSING for cell in column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]
