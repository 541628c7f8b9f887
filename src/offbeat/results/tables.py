"""Tables of one comparison, of several comparisons, and of runs side by side.

A table holds cells of text; `table_formats` and the command line render it. docs/metrics.md explains the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Literal

from offbeat import metrics
from offbeat.engine import Target
from offbeat.metrics import MISSING, Interval, Measure, MethodRow, NumberFormatter, Placement, Ranks, Summary

SummariesBySeed = Mapping[str, Mapping[int, Summary]]  # method -> seed -> summary of a finished run
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


@dataclass(frozen=True)
class UnfinishedRun:
    """A run of a comparison that is not finished."""

    strategy: str
    seed: int
    folder: str
    summary: Summary | None  # None: it has not started


@dataclass(frozen=True)
class Report:
    """The numbers of a comparison, as far as its runs are finished."""

    rows: list[MethodRow]  # one for each method with a finished run
    summaries: SummariesBySeed
    planned: Mapping[str, Sequence[int]]  # method -> all its seeds, finished or not
    reference: str
    target: Target | None
    unfinished: Sequence[UnfinishedRun] = ()
    figure: Path = Path()
    page: Path = Path()


def comparison_table(report: Report, arrows: bool = False) -> ResultTable:
    """Make the main table; if runs are unfinished, it gives the number of seeds of each mean."""
    cells = metrics.measure_table(report.rows, report.target, arrows=arrows)
    notes, summaries, planned = unreached_note(cells), report.summaries, report.planned
    if all(len(summaries.get(name, {})) == len(seeds) for name, seeds in planned.items()):
        best = _best_by_column(report)
        bold = {(1 + list(summaries).index(name), 1 + column) for column, name in best.items()}
        return ResultTable(cells, notes=notes, bold=frozenset(bold))
    counts = ["seeds", *(f"{len(by_seed)} of {len(planned[name])}" for name, by_seed in summaries.items())]
    return ResultTable([[row[0], count, *row[1:]] for row, count in zip(cells, counts, strict=True)], notes=notes)


def seed_tables(report: Report) -> list[ResultTable]:
    """Make tables with interval, difference to the reference and each seed.

    There is one for the final value, and one for the time to the target if any run reached it.
    """
    reached = report.target is not None and any(row["reached"] for row in report.rows)
    keys = ["final", "time_to_target"] if reached else ["final"]
    return [_seed_table(m, m.table, report) for m in metrics.MEASURES if m.key in keys and m.table is not None]


def _seed_table(measure: Measure, placement: Placement, report: Report) -> ResultTable:
    """Make the table of one measure with interval, difference to the reference and each seed."""
    text, values = placement.text, values_by_seed(measure, report.summaries)
    seeds = list(dict.fromkeys(seed for method_seeds in report.planned.values() for seed in method_seeds))
    cells = [["strategy", "seeds", "mean [95 %]", "difference [95 %]", "verdict", *(f"seed {seed}" for seed in seeds)]]
    for row in report.rows:
        by_seed = values[row.strategy]
        interval = metrics.confidence_interval(list(by_seed.values()))
        without_mean = isnan(interval.mean)
        mean = measure.cell(placement, row.values, row.seeds) if without_mean else _format_interval(text, interval)
        difference, verdict = MISSING, MISSING
        if row.strategy != report.reference:
            paired = metrics.paired_difference(by_seed, values.get(report.reference, {}))
            difference, verdict = _judge_difference(measure, row, paired, text)
        singles = [_seed_cell(placement, report, row.strategy, seed, by_seed) for seed in seeds]
        cells.append([row.strategy, str(len(by_seed)), mean, difference, verdict, *singles])
    heading = metrics.column_heading(measure, placement, report.rows[0], report.target)
    notes = [INTERVAL_NOTE if any(row.seeds > 1 for row in report.rows) else ONE_SEED_NOTE]
    if report.reference not in report.summaries:
        notes.append(f"no run of {report.reference} is finished: differences to it are missing")
    title = f"{heading} over seeds, with differences to {report.reference}"
    return ResultTable(cells, title, notes=(*notes, *unreached_note(cells)))


def unreached_note(rows: Sequence[Sequence[str]], note: str = BEYOND_NOTE) -> tuple[str, ...]:
    """Return a note if a cell is a lower bound of a time; the first column holds names and is ignored."""
    return (note,) if any(cell.startswith(metrics.BEYOND) for row in rows for cell in row[1:]) else ()


def values_by_seed(measure: Measure, summaries: SummariesBySeed) -> dict[str, dict[int, float]]:
    """Return a measure as method -> seed -> value."""
    assert measure.read is not None
    return {name: {seed: measure.read(s) for seed, s in by_seed.items()} for name, by_seed in summaries.items()}


def _format_interval(text: NumberFormatter, interval: Interval) -> str:
    """Format a mean, with its bounds if there are several seeds."""
    bounds = "" if isnan(interval.half) else f" [{text(interval.low)}, {text(interval.high)}]"
    return text(interval.mean) + bounds


def _judge_difference(measure: Measure, row: MethodRow, difference: Interval, text: NumberFormatter) -> tuple[str, str]:
    """Return the difference to the reference and the verdict."""
    if isnan(difference.mean):
        return MISSING, MISSING
    formatted = _format_interval(lambda value: _with_sign(text(value)), difference)
    if not difference.excludes_zero:
        return formatted, "undecided"
    more_is_better = measure.direction(row.higher_is_better) == "more"
    return formatted, "better" if (difference.mean > 0) == more_is_better else "worse"


def _with_sign(text: str) -> str:
    """Add a plus to a positive number, and remove the minus of -0.000."""
    if not any(digit in text for digit in "123456789"):
        return text.removeprefix("-")
    return text if text.startswith("-") else f"+{text}"


def _seed_cell(placement: Placement, report: Report, name: str, seed: int, by_seed: Mapping[int, float]) -> str:
    """Format the value of one run; a time that was not reached is a lower bound."""
    if seed not in by_seed:
        return UNFINISHED_CELL if seed in report.planned[name] else MISSING
    value, summary = by_seed[seed], report.summaries[name][seed]
    if isnan(value) and placement.target and summary.target is not None:
        return metrics.BEYOND + placement.text(summary.seconds)
    return placement.text(value)


def _best_by_column(report: Report) -> dict[int, str]:
    """Return, for each column, the method that paired differences show to be better than every other."""
    best: dict[int, str] = {}
    for column, (measure, _) in enumerate(metrics.placed_measures("table", report.target)):
        direction = measure.direction(report.rows[0].higher_is_better)
        if measure.read is None or direction is None or len(report.summaries) < 2:
            continue
        sign, values = 1 if direction == "more" else -1, values_by_seed(measure, report.summaries)
        for name, by_seed in values.items():
            differences = [
                metrics.paired_difference(by_seed, others) for other, others in values.items() if other != name
            ]
            if all(sign * difference.mean > 0 and difference.excludes_zero for difference in differences):
                best[column] = name
    return best


def unfinished_table(runs: Sequence[UnfinishedRun], resume_command: str) -> ResultTable:
    """Make a table with the progress of each unfinished run."""
    rows = [["run", "progress"]]
    for run in runs:
        s = run.summary
        metric = "" if s is None or not s.metrics else f", {s.headline} {s.metrics[s.headline]:.3f}"
        rows.append([run.folder, "not started" if s is None else f"{s.seconds:.0f} s, {s.updates} updates{metric}"])
    return ResultTable(rows, f"not finished and not included in any mean; to continue: {resume_command}", kind="prose")


def rank_table(ranks: Ranks) -> ResultTable:
    """Make a table with the mean rank of each method and its rank in each setting."""
    headings = ["strategy", "mean rank", "first", "shared first", *ranks.ranks]
    rows = [
        [m.name, f"{m.mean:.2f}", str(m.wins), str(m.ties), *(f"{row[n]:g}" for row in ranks.ranks.values())]
        for n, m in enumerate(ranks.methods)
    ]
    notes = []
    if ranks.left_out:
        notes.append(f"not ranked because some setting does not have them: {', '.join(ranks.left_out)}")
    if not isnan(ranks.p):
        few = " (approximate: fewer than ten settings)" if len(ranks.ranks) < 10 else ""
        test = f"chi-square {ranks.friedman:.2f} with {len(ranks.methods) - 1} degrees of freedom, p = {ranks.p:.2g}"
        notes.append(f"Friedman test: {test}{few}")
    title = f"ranks over {len(ranks.ranks)} settings, by the final value"
    return ResultTable([headings, *rows], title, notes=tuple(notes))


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
    """Make one table for each group of runs with the same metric and target, without measures that compare methods."""
    groups: dict[tuple[str, str, str], list[SingleRun]] = {}
    for run in runs:
        groups.setdefault((run.summary.headline, run.summary.evaluated, str(run.target)), []).append(run)
    result_tables = []
    for group in groups.values():
        rows = [metrics.average_over_seeds(run.folder, [run.summary], {}) for run in group]
        cells = metrics.measure_table(rows, group[0].target, arrows=arrows)
        labels = [["strategy", "seed"], *([r.strategy, MISSING if r.seed is None else str(r.seed)] for r in group)]
        placed = metrics.placed_measures("table", group[0].target)
        columns = [n for n, (measure, _) in enumerate(placed, 1) if measure.read is not None]
        table = [[row[0], *label, *(row[n] for n in columns)] for row, label in zip(cells, labels, strict=True)]
        table[0][0] = "run"
        unfinished = [run.folder for run in group if not run.complete]
        notes: tuple[str, ...] = (f"not finished: {', '.join(unfinished)}",) if unfinished else ()
        notes += unreached_note(cells, "> : the target was not reached in that time")
        result_tables.append(ResultTable(table, notes=notes))
    return result_tables
