"""The table, the figure and the page of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import ConfigError, DataError, printable
from offbeat.engines.until import Target
from offbeat.experiment import figure, heatmap, measures, page, series
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.config import Experiment
from offbeat.experiment.folder import Run
from offbeat.experiment.measures import Row


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    table: list[list[str]]  # headings first
    figure: Path
    page: Path


def read(comparison: Comparison, reference: str | None = None) -> Report:
    """The numbers; the figure and the page are where `write` put them."""
    rows = comparison.rows(reference)
    return Report(
        rows,
        measures.table(rows, _target(comparison)),
        comparison.folder / "figure.png",
        comparison.folder / "report.html",
    )


def write(comparison: Comparison, reference: str | None = None) -> Report:
    """The same, with the figure and the page made."""
    report = read(comparison, reference)
    draw(comparison, report)
    held = _held(_run(comparison))
    if held is not None:
        heatmap.save(held, comparison.folder / "partition.png")
    publish(comparison, report, reference)
    return report


def draw(comparison: Comparison, report: Report, path: Path | None = None) -> None:
    """The figure, where it is looked for or elsewhere."""
    metric = report.rows[0].metric
    methods, target = series.collect(comparison, metric), _target(comparison)
    figure.save(methods, metric, target, _title(comparison, report.rows[0]), path or report.figure)


def publish(comparison: Comparison, report: Report, reference: str | None = None, path: Path | None = None) -> None:
    """The page, where it is looked for or elsewhere."""
    rows, metric, target = report.rows, report.rows[0].metric, _target(comparison)
    methods, title, held = series.collect(comparison, metric), _title(comparison, rows[0]), _held(_run(comparison))
    drawn = [] if held is None else [heatmap.draw(held)]
    tables, against = (
        [measures.table(rows, target, place, arrows=True) for place in ("table", "page")],
        comparison.checked(reference),
    )
    page.save(methods, tables, metric, target, title, path or report.page, against, drawn, _data(comparison))


def _title(comparison: Comparison, row: Row) -> str:
    name = printable(_first(comparison).name)
    whose = "" if row.evaluated == "test" else ", mean of clients on their own test data,"
    return f"{name}: {row.metric}{whose} over {row.seeds} seed{'s' if row.seeds != 1 else ''}"


def _held(run: Run) -> heatmap.Held | None:
    """Who holds what; None where the data is no longer at hand, for results are worth a page without it."""
    try:
        return run.held()
    except (DataError, ConfigError):
        return None


def _run(comparison: Comparison) -> Run:
    """The first of them."""
    return comparison.runs(comparison.strategies()[0])[0]


def _first(comparison: Comparison) -> Experiment:
    """All are alike but for strategy and seed."""
    return _run(comparison).experiment()


def _data(comparison: Comparison) -> str | None:
    """As the first run met it."""
    return _run(comparison).summary().data


def _target(comparison: Comparison) -> Target | None:
    first = _first(comparison)
    return first.until.target or first.target
