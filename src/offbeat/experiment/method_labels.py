"""What methods are called: a label in tables, figures and JSON, and a folder that every file system can hold."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from offbeat.experiment.spec import call_syntax, choices
from offbeat.experiment.spec.call_syntax import Word
from offbeat.experiment.spec.config import Experiment

LONGEST = 80  # letters of a folder's name: some file systems end at 143, and a seed follows


def folders(labels: Iterable[str]) -> dict[str, str]:
    """A folder's name for each: letters, digits, dots and dashes; those that would be the same, also where capital
    and small letters are, get a number.
    """
    made: dict[str, str] = {}
    taken: set[str] = set()
    for label in dict.fromkeys(labels):
        plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).strip("-.")[:LONGEST].rstrip("-.") or "method"
        name, number = plain, 1
        while name.casefold() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.casefold())
        made[label] = name
    return made


def of(given: Iterable[str], methods: Container[str]) -> list[tuple[str, str]]:
    """Each word of these with what it is called: `CosBuff(k=3)` for `mine.py:CosBuff(k=3)`, unless two are called so
    then; `methods` have names already.
    """
    read = [(word, Word(word) if word in methods else call_syntax.parse(word)) for word in given]
    short = [str(Word(choices.label(found.name), found.settings)) for _, found in read]
    return [
        (str(found), name if short.count(name) == [f for _, f in read].count(found) else str(found))
        for (_, found), name in zip(read, short, strict=True)
    ]


def distinct(experiments: Iterable[tuple[str, Experiment]]) -> tuple[dict[str, Experiment], list[str]]:
    """Those that differ, and a line for each that is another one again."""
    kept: dict[str, Experiment] = {}
    lines = []
    for label, experiment in experiments:
        same = next((other for other, before in kept.items() if before == experiment), None)
        if same is None:
            kept[label] = experiment
        elif same == label:
            lines.append(f"{label} is named twice: it is run once")
        else:
            lines.append(f"{label} is {same}, setting by setting: it is run once, as {same}")
    return kept, lines
