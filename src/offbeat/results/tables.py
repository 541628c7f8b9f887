"""Tables of one comparison, of several comparisons, and of runs side by side.

A table holds cells of text; `table_formats` and the command line render it. docs/metrics.md explains the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Literal

from offbeat.engine import Target
from offbeat.metrics import (
    MEASURES,
    MISSING,
    Interval,
    Measure,
    MethodRow,
    NumberFormatter,
    Placement,
    Ranks,
    Summary,
    average_over_seeds,
    column_heading,
    confidence_interval,
    format_beyond,
    is_beyond,
    measure_table,
    paired_difference,
    placed_measures,
)

SummariesBySeed = Mapping[str, Mapping[int, Summary]]  # method -> seed -> summary of a finished run
PlannedSeeds = Mapping[str, Sequence[int]]  # method -> all its seeds, finished or not
TableKind = Literal["numbers", "pairs", "prose"]  # pairs have no headings
UNFINISHED_CELL = "unfinished"

BEYOND_NOTE = (
    "> t (k of n): only k of n seeds reached the target; the others count at their end time, so the true mean is higher"
)
BOLD_NOTE = "bold: better than every other method; the 95 % interval of each paired difference excludes 0"
INTERVAL_NOTE = (
    "[low, high]: 95 % confidence interval over seeds (Student's t). Differences are between runs of the same seed; "
    "the verdict is better or worse if their interval excludes 0"
)
ONE_SEED_NOTE = "one seed: there is no interval, and a difference may be due to chance"


@dataclass(frozen=True)
class ResultTable:
    """Cells of text with a title and notes."""

    rows: list[list[str]]  # headings first
    title: str = ""
    lead: tuple[str, ...] = ()  # lines above the table
    notes: tuple[str, ...] = ()  # lines below it
    bold: frozenset[tuple[int, int]] = frozenset()  # cells: row and column
    kind: TableKind = "numbers"


# ---------------------------------------------------------------- one comparison


def comparison_table(
    rows: Sequence[MethodRow],
    summaries: SummariesBySeed,
    planned: PlannedSeeds,
    target: Target | None,
    arrows: bool = False,
) -> ResultTable:
    """Make the main table; if runs are unfinished, it gives the number of seeds of each mean."""
    cells = measure_table(rows, target, arrows=arrows)
    notes = unreached_note(cells)
    if all(len(summaries.get(name, {})) == len(seeds) for name, seeds in planned.items()):
        best = _best_by_column(rows[0], summaries, target)
        bold = {(1 + list(summaries).index(name), 1 + column) for column, name in best.items()}
        return ResultTable(cells, notes=notes, bold=frozenset(bold))
    counts = ["seeds", *(f"{len(by_seed)} of {len(planned[name])}" for name, by_seed in summaries.items())]
    return ResultTable([[row[0], count, *row[1:]] for row, count in zip(cells, counts, strict=True)], notes=notes)


def seed_tables(
    rows: Sequence[MethodRow], summaries: SummariesBySeed, planned: PlannedSeeds, reference: str, target: Target | None
) -> list[ResultTable]:
    """Make tables with interval, difference to the reference and each seed.

    There is one for the final value, and one for the time to the target if any run reached it.
    """
    keys = ["final", "time_to_target"] if target is not None and any(row["reached"] for row in rows) else ["final"]
    chosen = [m for m in MEASURES if m.key in keys and m.table is not None]
    return [_seed_table(m, rows, summaries, planned, reference, target) for m in chosen]


def _seed_table(
    measure: Measure,
    rows: Sequence[MethodRow],
    summaries: SummariesBySeed,
    planned: PlannedSeeds,
    reference: str,
    target: Target | None,
) -> ResultTable:
    assert measure.table is not None
    text, values = measure.table.text, values_by_seed(measure, summaries)
    seeds = list(dict.fromkeys(seed for method_seeds in planned.values() for seed in method_seeds))
    cells = [["strategy", "seeds", "mean [95 %]", "difference [95 %]", "verdict", *(f"seed {seed}" for seed in seeds)]]
    for row in rows:
        by_seed = values[row.strategy]
        interval = confidence_interval(list(by_seed.values()))
        mean = (
            measure.cell(measure.table, row.values, row.seeds)
            if isnan(interval.mean)
            else _format_interval(text, interval)
        )
        difference, verdict = MISSING, MISSING
        if row.strategy != reference:
            difference, verdict = _compare(measure, row, paired_difference(by_seed, values.get(reference, {})), text)
        singles = [_seed_cell(measure.table, summaries, planned, row.strategy, seed, by_seed) for seed in seeds]
        cells.append([row.strategy, str(len(by_seed)), mean, difference, verdict, *singles])
    heading = column_heading(measure, measure.table, rows[0], target)
    notes = [INTERVAL_NOTE if any(row.seeds > 1 for row in rows) else ONE_SEED_NOTE]
    if reference not in summaries:
        notes.append(f"no run of {reference} is finished: differences to it are missing")
    return ResultTable(
        cells, f"{heading} over seeds, with differences to {reference}", notes=(*notes, *unreached_note(cells))
    )


def unreached_note(rows: Sequence[Sequence[str]], note: str = BEYOND_NOTE) -> tuple[str, ...]:
    """Return a note if a cell is a lower bound of a time; the first column holds names and is ignored."""
    return (note,) if any(is_beyond(cell) for row in rows for cell in row[1:]) else ()


def values_by_seed(measure: Measure, summaries: SummariesBySeed) -> dict[str, dict[int, float]]:
    """Return a measure as method -> seed -> value."""
    assert measure.read is not None
    return {name: {seed: measure.read(s) for seed, s in by_seed.items()} for name, by_seed in summaries.items()}


def _format_interval(text: NumberFormatter, interval: Interval) -> str:
    bounds = "" if isnan(interval.half) else f" [{text(interval.low)}, {text(interval.high)}]"
    return text(interval.mean) + bounds


def _compare(measure: Measure, row: MethodRow, difference: Interval, text: NumberFormatter) -> tuple[str, str]:
    """Return the difference to the reference and the verdict."""
    if isnan(difference.mean):
        return MISSING, MISSING
    formatted = _format_interval(lambda value: _signed(text(value)), difference)
    if not difference.excludes_zero:
        return formatted, "undecided"
    more_is_better = measure.direction(row.higher_is_better) == "more"
    return formatted, "better" if (difference.mean > 0) == more_is_better else "worse"


def _signed(text: str) -> str:
    if not any(digit in text for digit in "123456789"):
        return text.removeprefix("-")  # -0.000
    return text if text.startswith("-") else f"+{text}"


def _seed_cell(
    placement: Placement,
    summaries: SummariesBySeed,
    planned: PlannedSeeds,
    name: str,
    seed: int,
    by_seed: Mapping[int, float],
) -> str:
    if seed not in by_seed:
        return UNFINISHED_CELL if seed in planned[name] else MISSING
    value, summary = by_seed[seed], summaries[name][seed]
    if isnan(value) and placement.target and summary.target is not None:
        return format_beyond(placement.text(summary.seconds))
    return placement.text(value)


def _best_by_column(row: MethodRow, summaries: SummariesBySeed, target: Target | None) -> dict[int, str]:
    """Return, for each column, the method that paired differences show to be better than every other."""
    best: dict[int, str] = {}
    for column, (measure, _) in enumerate(placed_measures("table", target)):
        direction = measure.direction(row.higher_is_better)
        if measure.read is None or direction is None or len(summaries) < 2:
            continue
        sign, values = 1 if direction == "more" else -1, values_by_seed(measure, summaries)
        for name, by_seed in values.items():
            differences = [paired_difference(by_seed, others) for other, others in values.items() if other != name]
            if all(sign * difference.mean > 0 and difference.excludes_zero for difference in differences):
                best[column] = name
    return best


# ---------------------------------------------------------------- unfinished runs


@dataclass(frozen=True)
class UnfinishedRun:
    """A run of a comparison that is not finished."""

    strategy: str
    seed: int
    folder: str
    summary: Summary | None  # None: it has not started


def unfinished_table(runs: Sequence[UnfinishedRun], resume_command: str) -> ResultTable:
    rows = [["run", "progress"]]
    for run in runs:
        s = run.summary
        metric = "" if s is None or not s.metrics else f", {s.headline} {s.metrics[s.headline]:.3f}"
        rows.append([run.folder, "not started" if s is None else f"{s.seconds:.0f} s, {s.updates} updates{metric}"])
    return ResultTable(rows, f"not finished and not included in any mean; to continue: {resume_command}", kind="prose")


# ---------------------------------------------------------------- several comparisons or runs


def rank_table(ranks: Ranks) -> ResultTable:
    headings = ["strategy", "mean rank", "first", "shared first", *ranks.ranks]
    rows = [
        [m.name, f"{m.mean:.2f}", str(m.wins), str(m.ties), *(f"{row[n]:g}" for row in ranks.ranks.values())]
        for n, m in enumerate(ranks.methods)
    ]
    notes = []
    if ranks.left_out:
        notes.append(f"not ranked because some setting does not have them: {', '.join(ranks.left_out)}")
    if not isnan(ranks.p):
        notes.append(
            f"Friedman test: chi-square {ranks.friedman:.2f} with {len(ranks.methods) - 1} degrees of freedom, "
            f"p = {ranks.p:.2g}" + (" (approximate: fewer than ten settings)" if len(ranks.ranks) < 10 else "")
        )
    return ResultTable(
        [headings, *rows], f"ranks over {len(ranks.ranks)} settings, by the final value", notes=tuple(notes)
    )


@dataclass(frozen=True)
class SingleRun:
    """The summary of a run or a saved simulation."""

    folder: str
    strategy: str
    seed: int | None
    summary: Summary
    target: Target | None
    complete: bool = True


def side_by_side_tables(runs: Sequence[SingleRun], arrows: bool = False) -> list[ResultTable]:
    """Make one table for each group of runs with the same metric and target."""
    groups: dict[tuple[str, str, str], list[SingleRun]] = {}
    for run in runs:
        groups.setdefault((run.summary.headline, run.summary.evaluated, str(run.target)), []).append(run)
    return [_side_by_side_table(group, arrows) for group in groups.values()]


def _side_by_side_table(runs: Sequence[SingleRun], arrows: bool) -> ResultTable:
    rows = [average_over_seeds(run.folder, [run.summary], {}) for run in runs]
    cells = measure_table(rows, runs[0].target, arrows=arrows)
    labels = [["strategy", "seed"], *([r.strategy, MISSING if r.seed is None else str(r.seed)] for r in runs)]
    columns = [n for n, (m, _) in enumerate(placed_measures("table", runs[0].target), 1) if m.read is not None]
    table = [[row[0], *label, *(row[n] for n in columns)] for row, label in zip(cells, labels, strict=True)]
    table[0][0] = "run"
    notes = unreached_note(cells, "> : the target was not reached in that time")
    unfinished = [run.folder for run in runs if not run.complete]
    return ResultTable(table, notes=((f"not finished: {', '.join(unfinished)}",) if unfinished else ()) + notes)
