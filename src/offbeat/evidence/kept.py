"""What a page that is there shows and a store has less of: it stays, so that a page, too, is built in pieces.

Runs are large and pages are small: whoever adds to a table need not have the runs of the others, if their digests stand
on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from offbeat.core.errors import RunError
from offbeat.evidence.looked_at import NOT_RUN, Looked
from offbeat.evidence.store import IN_PLACE, PAPER_SIZE, STAND_IN
from offbeat.evidence.verdict import RULE

BEGIN, END = "<!-- summary -->", "<!-- end of summary -->"
_CELLS = 6  # of a row of the summary

Key = tuple[str, str]  # where in the paper, and what is measured


@dataclass(frozen=True)
class Kept:
    """Of one entry: what the summary says of it, and the section that shows it."""

    cells: tuple[str, ...]  # verdict, size, seeds
    section: str


def key_of(one: Looked) -> Key:
    return one.entry.where, one.entry.quantity.title


def heading(key: Key) -> str:
    """How the numbers of an entry begin."""
    return f"### {key[0]}: {key[1]} ("


def summary_lines(path: Path) -> list[str]:
    """The table at the head of a page, with its two first lines."""
    if not path.is_file():
        return []
    found = re.search(f"{BEGIN}\n(.*?)\n{END}", path.read_text(encoding="utf-8"), re.DOTALL)
    return [line for line in found[1].splitlines() if line.startswith("|")] if found else []


def keep(path: Path, rows: Mapping[Key, list[str]]) -> dict[Key, Kept]:
    """Of the entries that a new page would have in these rows of its summary: those the page that is there shows more
    of, and what shares a section with one. RunError where that cannot be told from the page.
    """
    there = {key: cells for key, cells in _rows(path) if key in rows and NOT_RUN not in cells}
    more = [key for key, cells in there.items() if _worth(*cells[4:]) > _worth(*rows[key][4:])]
    if not more:
        return {}
    text, kept = path.read_text(encoding="utf-8"), dict[Key, Kept]()
    for section in _sections(text):
        shown = [key for key in there if f"\n{heading(key)}" in section]
        if not set(more).isdisjoint(shown):
            kept |= {key: Kept(tuple(there[key][3:]), section) for key in shown}
    apart = [] if RULE in text else ["it judges by another rule than today's"]
    apart += [f"{key[0]} has no section there" for key in more if key not in kept]
    if apart:
        raise RunError(
            f"{path} shows more than this store has of {'; '.join(dict.fromkeys(where for where, _ in more))}, which "
            f"cannot be kept: {'; '.join(apart)}. It is left as it is: choose another --out, or remove it"
        )
    return kept


def _rows(path: Path) -> Iterable[tuple[Key, list[str]]]:
    for line in summary_lines(path)[2:]:
        cells = line.strip("| ").split(" | ")
        if len(cells) == _CELLS:
            yield (cells[0], cells[1]), cells


def _sections(text: str) -> list[str]:
    """One a world."""
    return [f"## {part}".rstrip("\n") for part in re.split(r"^## ", text.partition(END)[2], flags=re.MULTILINE)[1:]]


def _worth(size: str, seeds: str) -> tuple[float, ...]:
    """Real data is more than a stand-in, then the paper's size, the paper's own data, longer runs, more seeds."""
    cut = re.search(r"until (?:([0-9.e+]+)s|[0-9]+updates)", size)  # a target cuts no time short
    length = float(cut[1] or 0.0) if cut else inf
    number = int(seeds) if seeds.isdigit() else 0  # none: not run
    return number > 0, STAND_IN not in size, PAPER_SIZE in size, IN_PLACE not in size, length, number
