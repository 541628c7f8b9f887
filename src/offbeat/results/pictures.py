"""The figure and the page of a comparison or a run, from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from offbeat.core.errors import ConfigError, DataError, RunError, counted, printable
from offbeat.experiment import partition_heatmap
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec.config import strategy_name
from offbeat.metrics import measures
from offbeat.metrics.measures import Row
from offbeat.results import figures, page, result_warnings, series
from offbeat.results.page import Content, Table
from offbeat.results.series import Series

PLACES: tuple[Literal["table", "page"], ...] = ("table", "page")
PAGE = ".html"  # how the name of a page ends; others are figures


def write(comparison: Comparison, rows: Sequence[Row], reference: str, figure: Path, web: Path) -> None:
    """Of a comparison that is finished; and beside them who holds what."""
    found = of_comparison(comparison)
    figures.save(found, figure)
    held = who_holds_what(found.methods[0].runs[0], runs_code=True)  # which has run already
    if held is not None:
        partition_heatmap.save(held, comparison.folder / "partition.png")
    page.save(found, _content(found, rows, reference, held), web)


def draw(of: Comparison | Run, path: Path, kind: str = "all", reference: str | None = None) -> None:
    """A figure, or the page, of what there is so far; the ending of the path says which."""
    if isinstance(of, Comparison):
        of.checked(reference)  # before anything is read
    found = of_comparison(of) if isinstance(of, Comparison) else of_run(of)
    if path.suffix.lower() != PAGE:
        figures.save(found, path, kind)
        return
    page.save(found, content(of, found, reference, who_holds_what(found.methods[0].runs[0])), path)


def content(
    of: Comparison | Run | None, found: Series, reference: str | None = None, held: partition_heatmap.Held | None = None
) -> Content:
    """What the page of these tells beside what is drawn; None: of runs that somebody put beside each other."""
    rows, against = [measures.over_seeds(m.name, m.summaries, {}) for m in found.methods], None
    if isinstance(of, Comparison) and all(run.complete for _, run in of.entries()):
        rows, against = of.rows(reference), of.checked(reference)
    return _content(found, rows, against, held)


def of_comparison(comparison: Comparison) -> Series:
    return _titled(series.collect({name: comparison.runs(name) for name in comparison.strategies()}, ""))


def of_run(run: Run) -> Series:
    return _titled(series.collect({strategy_name(run.experiment()): [run]}, ""))


def who_holds_what(run: Run, runs_code: bool = False) -> partition_heatmap.Held | None:
    """None where the data is no longer at hand, or is of code that is not to be run: results are worth a page
    without it.
    """
    try:
        return run.held(runs_code)
    except (DataError, ConfigError, RunError):
        return None


def _titled(found: Series) -> Series:
    first, seeds = found.methods[0], max(len(method.seeds) for method in found.methods)
    whose = "" if first.summaries[0].evaluated == "test" else ", mean of clients on their own test data"
    what = printable(first.experiments[0].name)
    if len(found.methods) == 1 and seeds == 1:
        return replace(found, title=f"{what}: {first.name}, {found.metric}{whose}, seed {first.seeds[0]}")
    return replace(found, title=f"{what}: {found.metric}{whose}{',' if whose else ''} over {counted(seeds, 'seed')}")


def _content(found: Series, rows: Sequence[Row], reference: str | None, held: partition_heatmap.Held | None) -> Content:
    tables = [measures.table(rows, found.target, place, arrows=True) for place in PLACES]
    if reference is None:  # nothing was compared
        tables = [_told(table) for table in tables]
    return Content(
        result_warnings.of(found), tables, _by_seed(found), reference, found.methods[0].summaries[0].data, held
    )


def _by_seed(found: Series) -> Table:
    """Every run by itself."""
    each = [
        measures.over_seeds(f"{method.name}, seed {seed}", [summary], {})
        for method in found.methods
        for seed, summary in zip(method.seeds, method.summaries, strict=True)
    ]
    ends = [summary.ended for method in found.methods for summary in method.summaries]
    made = measures.table(each, found.target)
    return _told([[*row, end] for row, end in zip(made, ["ended", *ends], strict=True)])


def _told(table: Table) -> Table:
    """Without the columns in which there is nothing to tell."""
    kept = [i for i, column in enumerate(zip(*table, strict=True)) if any(cell != measures.NONE for cell in column[1:])]
    return [[row[i] for i in kept] for row in table]
