"""Keep sections of an existing page for which the store has fewer runs than the page shows.

Runs are large and pages are small: a page can be extended without the runs behind its other sections, because it holds
their digests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import OffbeatError, RunError
from offbeat.experiment import Scale
from offbeat.papers.entries import Entry
from offbeat.papers.evaluated_entry import NOT_RUN, EntryResult, MeasuredEntry
from offbeat.papers.run_store import IN_PLACE_OF, PAPER_SIZE, STAND_IN, PaperSetting, rank_setting
from offbeat.papers.verdict import RULE

BEGIN, END = "<!-- summary -->", "<!-- end of summary -->"
EXPLANATION = "**Possible reasons for differences**"  # heading after the numbers of a section
SUMMARY_COLUMNS = 6

EntryKey = tuple[str, str]  # place in the paper, title of the quantity


@dataclass(frozen=True)
class PageSection:
    """An entry of an existing page: its row of the summary, and the section with its numbers."""

    row: list[str]
    section: str


def entry_key(entry: Entry) -> EntryKey:
    """Return what identifies an entry on a page."""
    return entry.where, entry.quantity.title


def format_heading(key: EntryKey) -> str:
    """Return the start of the heading above the numbers of an entry."""
    return f"### {key[0]}: {key[1]} ("


def format_setting(setting: PaperSetting) -> str:
    """Return the line of a section that names its preset."""
    return f"- Setting: {setting.load().summary} (`{setting.preset}`)"


def summary_lines(path: Path) -> list[str]:
    """Return the lines of the summary table of a page; empty if there is no page."""
    if not path.is_file():
        return []
    match = re.search(f"{BEGIN}\n(.*?)\n{END}", path.read_text(encoding="utf-8"), re.DOTALL)
    return [line for line in match[1].splitlines() if line.startswith("|")] if match else []


def sections_to_keep(path: Path, results: Sequence[EntryResult]) -> dict[EntryKey, PageSection]:
    """Return the entries for which the existing page is based on better runs than the results.

    RunError if the page has results that can neither be kept nor be replaced.
    """
    rows = [line.strip("| ").split(" | ") for line in summary_lines(path)[2:]]
    finished = [row for row in rows if len(row) == SUMMARY_COLUMNS and NOT_RUN not in row and row[5].isdigit()]
    shown = {(row[0], row[1]): row for row in finished}
    if not shown:
        return {}
    text = path.read_text(encoding="utf-8")
    parts = re.split(r"^## ", text.partition(END)[2], flags=re.MULTILINE)[1:]
    headed = [f"## {part}".rstrip("\n") for part in parts]
    sections = {key: section for section in headed for key in shown if f"\n{format_heading(key)}" in section}
    current = {entry_key(result.entry) for result in results}
    problems = [f"{key[0]} is no current entry of the paper" for key in shown if key not in current]
    better: list[EntryKey] = []
    for result in results:
        key = entry_key(result.entry)
        if key not in shown:
            continue
        try:
            setting = _parse_size(result.entry, shown[key][4])
            run_count = re.search(r"<summary>(\d+) runs? and", sections.get(key, ""))
            rank = rank_setting(setting, int(run_count[1]) if run_count else 1)  # a row needs at least one run
            runs = result.runs if isinstance(result, MeasuredEntry) else None
            if runs is None or rank < rank_setting(runs.setting, len(runs.finished)):
                better.append(key)
                if key not in sections or format_setting(setting) not in sections[key]:
                    problems.append(f"{key[0]} has no section, or its preset has changed")
        except (OffbeatError, ValueError):
            problems.append(f"{key[0]} has an unknown size: {shown[key][4]}")
    if better and RULE not in text:
        problems.append("it uses another rule for verdicts")
    if problems:
        raise RunError(
            f"{path} has results that are not in the store and cannot be kept: {'; '.join(dict.fromkeys(problems))}. "
            "The page was not changed: choose another --out, or remove the page"
        )
    return {key: PageSection(shown[key], _select_entries(sections[key], better)) for key in better}


def _select_entries(section: str, keys: Sequence[EntryKey]) -> str:
    """Return the section with the numbers of only these entries."""
    numbers, mark, rest = section.partition(EXPLANATION)
    head, *blocks = re.split(r"^(?=### )", numbers, flags=re.MULTILINE)
    selected = {key: block for key in keys for block in blocks if block.startswith(format_heading(key))}
    selected_blocks = [block for block in blocks if block in selected.values()]
    title = f"## {'; '.join(dict.fromkeys(where for where, _ in selected))}"
    return "".join([title, "\n", head.partition("\n")[2], *selected_blocks, mark, rest])


def _parse_size(entry: Entry, size: str) -> PaperSetting:
    """Parse the label of a setting."""
    parts = size.split(", ")
    until = next((part.removeprefix("until ") for part in parts if part.startswith("until ")), None)
    scale: Scale = "paper" if parts[0] == PAPER_SIZE else "quick"
    setting = PaperSetting(entry.preset or "", scale, until, STAND_IN in size, IN_PLACE_OF in size)
    if setting.label != size:
        raise ValueError(size)
    return setting
