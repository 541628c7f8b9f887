"""The table, the figure and the page of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import ConfigError, DataError, RunError, printable
from offbeat.engines.until import Target
from offbeat.experiment import build, figure, heatmap, measures, page, series
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
    report, target = read(comparison, reference), _target(comparison)
    rows, metric = report.rows, report.rows[0].metric
    name = printable(_first(comparison).name)
    whose = "" if rows[0].evaluated == "test" else ", mean of clients on their own test data,"
    title = f"{name}: {metric}{whose} over {rows[0].seeds} seed{'s' if rows[0].seeds != 1 else ''}"
    methods = series.collect(comparison, metric)
    figure.save(methods, metric, target, title, report.figure)
    held = _held(comparison.runs(comparison.strategies()[0])[0])
    if held is not None:
        heatmap.save(held, comparison.folder / "partition.png")
    drawn = [] if held is None else [heatmap.draw(held)]
    tables, against = (
        [measures.table(rows, target, place, arrows=True) for place in ("table", "page")],
        comparison.checked(reference),
    )
    page.save(methods, tables, metric, target, title, report.page, against, drawn, _data(comparison))
    return report


def _held(run: Run) -> heatmap.Held | None:
    """Who holds what; None where the data, or somebody's code, is no longer at hand: results are worth a page without
    it.
    """
    try:
        return build.held(run.runnable())
    except (DataError, ConfigError, RunError):
        return None


def _first(comparison: Comparison) -> Experiment:
    """All are alike but for strategy and seed."""
    return comparison.runs(comparison.strategies()[0])[0].experiment()


def _data(comparison: Comparison) -> str | None:
    """As the first run met it."""
    return comparison.runs(comparison.strategies()[0])[0].summary().data


def _target(comparison: Comparison) -> Target | None:
    first = _first(comparison)
    return first.until.target or first.target
