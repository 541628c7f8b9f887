"""The table, the figure and the page of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offbeat.engines.until import Target
from offbeat.experiment import measures, pictures
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.config import Experiment
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
    pictures.write(comparison, report.rows, comparison.checked(reference), report.figure, report.page)
    return report


def _first(comparison: Comparison) -> Experiment:
    """All are alike but for strategy and seed."""
    return comparison.runs(comparison.strategies()[0])[0].experiment()


def _target(comparison: Comparison) -> Target | None:
    first = _first(comparison)
    return first.until.target or first.target
