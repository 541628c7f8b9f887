"""The table, the figure and the page of a comparison, or of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from offbeat.core.errors import DataError, printable
from offbeat.engines.until import Target
from offbeat.experiment import build, doubts, figures, heatmap, measures, page, series
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.config import Experiment, strategy_name
from offbeat.experiment.measures import Row
from offbeat.experiment.page import Content
from offbeat.experiment.run import Run
from offbeat.experiment.series import Series

PLACES: tuple[Literal["table", "page"], ...] = ("table", "page")
PAGE = ".html"  # how the name of a page ends; others are figures


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


def write(comparison: Comparison, reference: str | None = None, names: Mapping[int, str] | None = None) -> Report:
    """The same, with the figure and the page made. `names`: of clients that have one."""
    report = read(comparison, reference)
    found = of_comparison(comparison, names)
    figures.save(found, report.figure)
    held = _held(_first(comparison))
    if held is not None:
        heatmap.save(held, comparison.folder / "partition.png")
    page.save(found, _content(found, report.rows, comparison.checked(reference), held), report.page)
    return report


def draw(folder: Comparison | Run, path: Path, kind: str = "all", names: Mapping[int, str] | None = None) -> None:
    """A figure, or the page, of what there is so far; the ending of the path says which."""
    found = of_comparison(folder, names) if isinstance(folder, Comparison) else of_run(folder, names)
    if path.suffix.lower() != PAGE:
        figures.save(found, path, kind)
        return
    rows = [measures.over_seeds(m.name, m.summaries, {}) for m in found.methods]
    page.save(found, _content(found, rows, None, _held(found.methods[0].experiments[0])), path)


def of_comparison(comparison: Comparison, names: Mapping[int, str] | None = None) -> Series:
    return _titled(series.collect({name: comparison.runs(name) for name in comparison.strategies()}, "", names))


def of_run(run: Run, names: Mapping[int, str] | None = None) -> Series:
    return _titled(series.collect({strategy_name(run.experiment()): [run]}, "", names))


def _titled(found: Series) -> Series:
    first, seeds = found.methods[0], max(len(method.seeds) for method in found.methods)
    whose = "" if first.summaries[0].evaluated == "test" else ", mean of clients on their own test data,"
    over = (
        f"over {seeds} seeds" if seeds > 1 else f"seed {first.seeds[0]}" if len(found.methods) == 1 else "over 1 seed"
    )
    return replace(found, title=f"{printable(first.experiments[0].name)}: {found.metric}{whose} {over}")


def _content(found: Series, rows: list[Row], reference: str | None, held: heatmap.Held | None) -> Content:
    tables = [measures.table(rows, found.target, place, arrows=True) for place in PLACES]
    if reference is None:  # nothing was compared
        tables = [_told(table) for table in tables]
    return Content(doubts.of(found), tables, _by_seed(found), reference, found.methods[0].summaries[0].data, held)


def _by_seed(found: Series) -> list[list[str]]:
    """Every run by itself."""
    each = [
        measures.over_seeds(f"{method.name}, seed {seed}", [summary], {})
        for method in found.methods
        for seed, summary in zip(method.seeds, method.summaries, strict=True)
    ]
    made = measures.table(each, found.target)
    ends = [summary.ended for method in found.methods for summary in method.summaries]
    return _told([[*row, end] for row, end in zip(made, ["ended", *ends], strict=True)])


def _told(table: list[list[str]]) -> list[list[str]]:
    """Without the columns in which there is nothing to tell."""
    kept = [i for i, column in enumerate(zip(*table, strict=True)) if any(cell != measures.NONE for cell in column[1:])]
    return [[row[i] for i in kept] for row in table]


def _held(experiment: Experiment) -> heatmap.Held | None:
    """Who holds what; None where the data is no longer at hand, for results are worth a page without it."""
    try:
        return build.held(experiment)
    except DataError:
        return None


def _first(comparison: Comparison) -> Experiment:
    """All are alike but for strategy and seed."""
    return comparison.runs(comparison.strategies()[0])[0].experiment()


def _target(comparison: Comparison) -> Target | None:
    first = _first(comparison)
    return first.until.target or first.target
