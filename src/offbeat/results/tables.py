"""The tables of a comparison, of several, and of runs beside each other: what `show` prints and papers take over.

A table is cells of text; `formats` and the command line say how they look. docs/metrics.md says what each number means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from offbeat.engine.until import Target
from offbeat.metrics import measures, ranks
from offbeat.metrics.intervals import Interval, interval, paired
from offbeat.metrics.measures import MEASURES, NONE, Measure, Row, Shown, Text
from offbeat.metrics.trace_summary import Summary

Found = Mapping[str, Mapping[int, Summary]]  # method -> seed -> what came out, of finished runs
Planned = Mapping[str, Sequence[int]]  # method -> the seeds there are to be
Kind = Literal["numbers", "pairs", "prose"]  # pairs have no headings
UNFINISHED = "unfinished"

BEYOND = (
    "> t (k of n): k of n seeds got there; the others count with the time they were watched for, so the mean is larger"
)
BOLD = "bold: better than every other method, of each paired difference the 95 % interval excludes 0"
BRACKETS = (
    "[low, high]: 95 % confidence interval over seeds (Student's t). Differences are between runs of the same seed, "
    "and decided where their interval excludes 0"
)
ONE_SEED = "one seed: there is no interval, and a difference may be chance"


@dataclass(frozen=True)
class Table:
    rows: list[list[str]]  # headings first
    title: str = ""
    lead: tuple[str, ...] = ()  # lines above,
    notes: tuple[str, ...] = ()  # and below
    bold: frozenset[tuple[int, int]] = frozenset()  # cells: row and column
    kind: Kind = "numbers"


# ---------------------------------------------------------------- a comparison


def main(rows: Sequence[Row], found: Found, planned: Planned, target: Target | None, arrows: bool = False) -> Table:
    """The table of the README. Where runs are not finished it says over how many seeds each mean is."""
    cells = measures.table(rows, target, arrows=arrows)
    bold = _supported(rows[0], found, target) if _even(found, planned) else {}
    marked = {(1 + list(found).index(name), 1 + column) for column, name in bold.items()}
    notes = beyond(cells)
    if not _even(found, planned):
        cells = [[row[0], more, *row[1:]] for row, more in zip(cells, ["seeds", *_counts(found, planned)], strict=True)]
    return Table(cells, notes=notes, bold=frozenset(marked))


def over_seeds(
    rows: Sequence[Row], found: Found, planned: Planned, reference: str, target: Target | None
) -> list[Table]:
    """Of the final value, and of the time to the target if anybody got there: interval, difference to the reference,
    every seed.
    """
    keys = ["final", "time_to_target"] if target is not None and any(row["reached"] for row in rows) else ["final"]
    chosen = [m for m in MEASURES if m.key in keys and m.table is not None]
    return [_over_seeds(m, rows, found, planned, reference, target) for m in chosen]


def _over_seeds(
    measure: Measure, rows: Sequence[Row], found: Found, planned: Planned, reference: str, target: Target | None
) -> Table:
    assert measure.table is not None
    text, each = measure.table.text, by_seed(measure, found)
    seeds = list(dict.fromkeys(seed for given in planned.values() for seed in given))
    made = [["strategy", "seeds", "mean [95 %]", "difference [95 %]", "which is", *(f"seed {seed}" for seed in seeds)]]
    for row in rows:
        mine = each[row.strategy]
        mean = interval(list(mine.values()))
        told = _interval(text, mean) if mean.mean == mean.mean else measure.cell(measure.table, row.values, row.seeds)
        against = paired(mine, each.get(reference, {}))
        difference, verdict = (NONE, NONE) if row.strategy == reference else _against(measure, row, against, text)
        one = [_one(measure.table, found, planned, row.strategy, seed, mine) for seed in seeds]
        made.append([row.strategy, str(len(mine)), told, difference, verdict, *one])
    heading = measures.heading(measure, measure.table, rows[0], target)
    notes = [BRACKETS if any(row.seeds > 1 for row in rows) else ONE_SEED]
    if reference not in found:
        notes.append(f"no run of {reference} is finished: there are no differences to it")
    return Table(made, f"{heading} over seeds, with differences to {reference}", notes=(*notes, *beyond(made)))


def beyond(rows: Sequence[Sequence[str]], note: str = BEYOND) -> tuple[str, ...]:
    """What times say that were not reached, where there is one. A name is none, whatever it begins with."""
    return (note,) if any(measures.is_beyond(cell) for row in rows for cell in row[1:]) else ()


def by_seed(measure: Measure, found: Found) -> dict[str, dict[int, float]]:
    """Every method's values of one measure."""
    assert measure.read is not None
    return {name: {seed: measure.read(s) for seed, s in given.items()} for name, given in found.items()}


def _interval(text: Text, given: Interval) -> str:
    return text(given.mean) + (f" [{text(given.low)}, {text(given.high)}]" if given.half == given.half else "")


def _against(measure: Measure, row: Row, difference: Interval, text: Text) -> tuple[str, str]:
    """The difference to the reference, and which way it is decided."""
    if difference.mean != difference.mean:
        return NONE, NONE
    told = _interval(lambda value: _signed(text(value)), difference)
    if not difference.excludes_zero:
        return told, "undecided"
    return told, "better" if (difference.mean > 0) == (measure.direction(row.higher_is_better) == "more") else "worse"


def _signed(text: str) -> str:
    if not any(digit in text for digit in "123456789"):
        return text.removeprefix("-")  # -0.000
    return text if text.startswith("-") else f"+{text}"


def _one(how: Shown, found: Found, planned: Planned, name: str, seed: int, mine: Mapping[int, float]) -> str:
    """One seed of one method."""
    if seed not in mine:
        return UNFINISHED if seed in planned[name] else NONE
    value, summary = mine[seed], found[name][seed]
    if value != value and how.target and summary.target is not None:
        return measures.beyond(how.text(summary.seconds))
    return how.text(value)


def _even(found: Found, planned: Planned) -> bool:
    """Is everything finished?"""
    return all(len(found.get(name, {})) == len(seeds) for name, seeds in planned.items())


def _counts(found: Found, planned: Planned) -> list[str]:
    return [f"{len(given)} of {len(planned[name])}" for name, given in found.items()]


def _supported(row: Row, found: Found, target: Target | None) -> dict[int, str]:
    """Of each column, the method that is better than every other, where paired differences say so."""
    best: dict[int, str] = {}
    for number, (measure, _) in enumerate(measures.shown("table", target)):
        way = measure.direction(row.higher_is_better)
        if measure.read is None or way is None or len(found) < 2:
            continue
        sign, each = 1 if way == "more" else -1, by_seed(measure, found)
        for name, mine in each.items():
            others = [paired(mine, theirs) for other, theirs in each.items() if other != name]
            if all(sign * other.mean > 0 and other.excludes_zero for other in others):
                best[number] = name
    return best


# ---------------------------------------------------------------- what is not finished


@dataclass(frozen=True)
class Going:
    """A run of a comparison that is not finished."""

    strategy: str
    seed: int
    folder: str
    summary: Summary | None  # None: it has not begun


def unfinished(going: Sequence[Going], again: str) -> Table:
    rows = [["run", "got to"]]
    for run in going:
        s = run.summary
        metric = "" if s is None or not s.metrics else f", {s.headline} {s.metrics[s.headline]:.3f}"
        rows.append([run.folder, "not begun" if s is None else f"{s.seconds:.0f} s, {s.updates} updates{metric}"])
    return Table(rows, f"not finished, and in no mean; to go on: {again}", kind="prose")


# ---------------------------------------------------------------- several


def ranked(made: ranks.Ranks) -> Table:
    headings = ["strategy", "mean rank", "first", "shared first", *made.ranks]
    rows = [
        [m.name, f"{m.mean:.2f}", str(m.wins), str(m.ties), *(f"{given[n]:g}" for given in made.ranks.values())]
        for n, m in enumerate(made.methods)
    ]
    notes = []
    if made.left_out:
        notes.append(f"not ranked, since not every setting has them: {', '.join(made.left_out)}")
    if made.p == made.p:
        notes.append(
            f"Friedman: chi-square {made.friedman:.2f} of {len(made.methods) - 1} degrees of freedom, p = {made.p:.2g}"
            + (" (rough: fewer than ten settings)" if len(made.ranks) < 10 else "")
        )
    return Table([headings, *rows], f"ranks over {len(made.ranks)} settings, by the final value", notes=tuple(notes))


@dataclass(frozen=True)
class Single:
    """A run, or a saved simulation, by itself."""

    folder: str
    strategy: str
    seed: int | None
    summary: Summary
    target: Target | None
    complete: bool = True


def beside(runs: Sequence[Single], arrows: bool = False) -> list[Table]:
    """Runs beside each other: a table for those that measure the same and go for the same target."""
    kinds: dict[tuple[str, str, str], list[Single]] = {}
    for run in runs:
        kinds.setdefault((run.summary.headline, run.summary.evaluated, str(run.target)), []).append(run)
    return [_beside(alike, arrows) for alike in kinds.values()]


def _beside(runs: Sequence[Single], arrows: bool) -> Table:
    rows = [measures.over_seeds(run.folder, [run.summary], {}) for run in runs]
    cells = measures.table(rows, runs[0].target, arrows=arrows)
    words = [["strategy", "seed"], *([r.strategy, NONE if r.seed is None else str(r.seed)] for r in runs)]
    compared = {1 + n for n, (m, _) in enumerate(measures.shown("table", runs[0].target)) if m.read is None}
    made = [
        [row[0], *more, *(cell for n, cell in enumerate(row) if n > 0 and n not in compared)]
        for row, more in zip(cells, words, strict=True)
    ]
    notes = beyond(cells, "> : the target was not reached in that time")
    made[0][0] = "run"
    going = [run.folder for run in runs if not run.complete]
    return Table(made, notes=((f"not finished: {', '.join(going)}",) if going else ()) + notes)
