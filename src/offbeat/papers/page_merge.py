"""What a page that is there shows and a store has less of: it stays, so that a page, too, is built in pieces.

Runs are large and pages are small: whoever adds to a table need not have the runs of the others, if their digests stand
on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import OffbeatError, RunError
from offbeat.experiment.preset import Scale
from offbeat.papers.entries import Entry
from offbeat.papers.evaluated_entry import NOT_RUN, Looked
from offbeat.papers.run_store import IN_PLACE, PAPER_SIZE, STAND_IN, World, rank
from offbeat.papers.verdict import RULE

BEGIN, END = "<!-- summary -->", "<!-- end of summary -->"
EXPLAINED = "**What could explain a difference**"  # what follows the numbers of a section
_CELLS = 6  # of a row of the summary

Key = tuple[str, str]  # where in the paper, and what is measured


@dataclass(frozen=True)
class Kept:
    """Of one entry: its row of the summary, and the section that shows it, without what others show better."""

    row: list[str]
    section: str


def key_of(entry: Entry) -> Key:
    return entry.where, entry.quantity.title


def heading(key: Key) -> str:
    """How the numbers of an entry begin."""
    return f"### {key[0]}: {key[1]} ("


def setting(world: World) -> str:
    """How a section says what it is of."""
    return f"- Setting: {world.load().summary} (`{world.preset}`)"


def summary_lines(path: Path) -> list[str]:
    """The table at the head of a page, with its two first lines."""
    if not path.is_file():
        return []
    found = re.search(f"{BEGIN}\n(.*?)\n{END}", path.read_text(encoding="utf-8"), re.DOTALL)
    return [line for line in found[1].splitlines() if line.startswith("|")] if found else []


def keep(path: Path, looked: Sequence[Looked]) -> dict[Key, Kept]:
    """The entries of which the page that is there shows more than was looked at. RunError where something on it can
    neither be kept nor be replaced.
    """
    there = {key: row for key, row in _rows(path) if NOT_RUN not in row and row[5].isdigit()}
    if not there:
        return {}
    text = path.read_text(encoding="utf-8")
    sections = {key: section for section in _sections(text) for key in there if f"\n{heading(key)}" in section}
    known, more = {key_of(one.entry) for one in looked}, []
    wrong = [f"{key[0]} is no entry of the paper now" for key in there if key not in known]
    for one in looked:
        key = key_of(one.entry)
        if key not in there:
            continue
        try:
            world, runs = _world(one.entry, there[key][4]), _runs(sections.get(key, ""))
            if one.shelf is None or rank(world, runs) < rank(one.shelf.world, len(one.shelf.finished)):
                more.append(key)
                if key not in sections or setting(world) not in sections[key]:
                    wrong.append(f"{key[0]} has no section there, or one of another preset than today's")
        except (OffbeatError, ValueError):
            wrong.append(f"{key[0]} is of a size that is not understood: {there[key][4]}")
    if more and RULE not in text:
        wrong.append("it judges by another rule than today's")
    if wrong:
        raise RunError(
            f"{path} shows what is not here and cannot be kept: {'; '.join(dict.fromkeys(wrong))}. It is left as it "
            "is: choose another --out, or remove it"
        )
    return {key: Kept(there[key], _only(sections[key], more)) for key in more}


def _rows(path: Path) -> Iterable[tuple[Key, list[str]]]:
    for line in summary_lines(path)[2:]:
        cells = line.strip("| ").split(" | ")
        if len(cells) == _CELLS:
            yield (cells[0], cells[1]), cells


def _sections(text: str) -> list[str]:
    """One a world."""
    return [f"## {part}".rstrip("\n") for part in re.split(r"^## ", text.partition(END)[2], flags=re.MULTILINE)[1:]]


def _only(section: str, keys: Sequence[Key]) -> str:
    """The section with the numbers of these entries alone."""
    numbers, mark, rest = section.partition(EXPLAINED)
    head, *blocks = re.split(r"^(?=### )", numbers, flags=re.MULTILINE)
    shown = [key for key in keys if any(block.startswith(heading(key)) for block in blocks)]
    kept = [block for block in blocks if block.startswith(tuple(map(heading, shown)))]
    title = f"## {'; '.join(dict.fromkeys(where for where, _ in shown))}"
    return "".join([title, "\n", head.partition("\n")[2], *kept, mark, rest])


def _world(entry: Entry, size: str) -> World:
    """Read back from its label."""
    parts = size.split(", ")
    until = next((part.removeprefix("until ") for part in parts if part.startswith("until ")), None)
    scale: Scale = "paper" if parts[0] == PAPER_SIZE else "quick"
    world = World(entry.preset or "", scale, until, STAND_IN in size, IN_PLACE in size)
    if world.label != size:
        raise ValueError(size)
    return world


def _runs(section: str) -> int:
    found = re.search(r"<summary>(\d+) runs? and", section)
    return int(found[1]) if found else 1  # a row is of one at least
