"""The table, the figure and the page of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offbeat.engine.until import Target
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run.run_folder import Run
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics.measures import Row
from offbeat.metrics.trace_summary import Summary
from offbeat.results import pictures
from offbeat.results.tables import Going

FIGURE, PAGE = "figure.png", "report.html"  # in the folder; the page is written last


@dataclass(frozen=True)
class Report:
    """A comparison in numbers, as far as its runs are finished."""

    rows: list[Row]  # one a method that has a finished run
    found: dict[str, dict[int, Summary]]  # by method and seed
    planned: dict[str, list[int]]  # the seeds of each method, finished or not
    going: list[Going]
    reference: str
    target: Target | None
    figure: Path
    page: Path


def read(comparison: Comparison, reference: str | None = None) -> Report:
    """The numbers; the figure and the page are where `write` put them."""
    found, planned = comparison.finished(), dict[str, list[int]]()
    for entry, _ in comparison.entries():
        planned.setdefault(entry["strategy"], []).append(entry["seed"])
    return Report(
        comparison.rows(reference, found),
        found,
        planned,
        _going(comparison, found),
        comparison.checked(reference),
        _target(comparison),
        comparison.folder / FIGURE,
        comparison.folder / PAGE,
    )


def _going(comparison: Comparison, found: dict[str, dict[int, Summary]]) -> list[Going]:
    """Whatever is not among the finished; it may have ended since."""
    left = [(e, run) for e, run in comparison.entries() if e["seed"] not in found.get(e["strategy"], {})]
    so_far = [run.summary() if run.trace_file.is_file() else None for _, run in left]
    return [Going(e["strategy"], e["seed"], e["folder"], s) for (e, _), s in zip(left, so_far, strict=True)]


def write(comparison: Comparison, reference: str | None = None) -> Report:
    """The same, with the figure and the page made."""
    report = read(comparison, reference)
    pictures.write(comparison, report.rows, report.reference, report.figure, report.page)
    return report


def _run(comparison: Comparison) -> Run:
    """The first of them."""
    return comparison.runs(comparison.strategies()[0])[0]


def _first(comparison: Comparison) -> Experiment:
    """All are alike but for strategy and seed."""
    return _run(comparison).experiment()


def _target(comparison: Comparison) -> Target | None:
    first = _first(comparison)
    return first.until.target or first.target
