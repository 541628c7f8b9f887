"""A choice and its settings in one word: `fedbuff(k=2,staleness=polynomial(a=1))`, `mine.py:CosBuff(k=3)`.

What stands in brackets at the end are settings, each a change as `--set` has it: `fedbuff(staleness.a=1)` is allowed
too. Values stay text here; they are read where all changes are, in `files`. Commas, brackets and equal signs inside
brackets or quotes belong to a value: `fedfa(k=5,work={steps: 3, lr: 0.1})`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from offbeat.core.errors import ConfigError

PAIRS = {"(": ")", "[": "]", "{": "}"}
KEY = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True)
class ChoiceCall:
    name: str
    settings: tuple[tuple[str, str | ChoiceCall], ...] = ()

    def __str__(self) -> str:
        inside = ",".join(f"{key}={value}" for key, value in self.settings)
        return f"{self.name}({inside})" if inside else self.name

    def changes(self, path: str) -> Iterator[str]:
        """What `--set` would be told: the choice, then its settings."""
        yield f"{path}={self.name}"
        for key, value in self.settings:
            here = f"{path}.{key}"
            yield from value.changes(here) if isinstance(value, ChoiceCall) else [f"{here}={value}"]


def parse_call(text: str) -> ChoiceCall:
    """Raises a ConfigError that says where it is not understood."""
    word = text.strip()
    marks = list(_marks(word))
    if not word.endswith(")"):
        if not word:
            raise ConfigError("nothing is named: write fedbuff, or fedbuff(k=2)")
        return ChoiceCall(word)
    begin = [at for at, mark, depth in marks if mark == "(" and depth == 0][-1]
    name, inside = word[:begin].strip(), word[begin + 1 : -1]
    if not name:
        raise ConfigError(f"{word!r} names nothing before its brackets: write fedbuff(k=2)")
    commas = [at - begin - 1 for at, mark, depth in marks if mark == "," and depth == 1 and at > begin]
    settings = tuple(_setting(part, word) for part in _cut(inside, commas)) if inside.strip() else ()
    keys = [key for key, _ in settings]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"{word!r}: {key} is given twice")
    return ChoiceCall(name, settings)


def split_calls(text: str) -> list[str]:
    """At the commas that stand in no brackets; 'a,b(c=1,d=2)' are two."""
    return _cut(text, [at for at, mark, depth in _marks(text) if mark == "," and depth == 0])


def _cut(text: str, commas: list[int]) -> list[str]:
    ends = zip([-1, *commas], [*commas, len(text)], strict=True)
    return [text[begin + 1 : end].strip() for begin, end in ends]


def _setting(text: str, word: str) -> tuple[str, str | ChoiceCall]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value or KEY.fullmatch(key) is None:
        raise ConfigError(f"{word!r}: {text!r} is not understood: write setting=value, such as fedbuff(k=2,lr=0.5)")
    return key, parse_call(value) if value.endswith(")") and value[0] not in "'\"[{(" else value


def _marks(text: str) -> Iterator[tuple[int, str, int]]:
    """Every character that is not quoted, and how many brackets it stands in; a bracket counts as outside itself."""
    closing: list[str] = []  # what the open brackets wait for
    quote = ""
    before = "("
    at = 0
    while at < len(text):
        mark = text[at]
        if quote:
            at += mark == "\\" and quote == '"'  # the next one is not the end
            quote = "" if mark == quote else quote
        elif closing and mark in "'\"" and before in "=,:([{'\"":  # an apostrophe in a name is none
            quote = mark
        elif mark in PAIRS:
            yield at, mark, len(closing)
            closing.append(PAIRS[mark])
        elif mark in PAIRS.values():
            if not closing or closing.pop() != mark:
                raise ConfigError(f"{text!r}: the {mark!r} at place {at + 1} closes nothing")
            yield at, mark, len(closing)
        else:
            yield at, mark, len(closing)
        before = before if mark.isspace() else mark
        at += 1
    if closing or quote:
        raise ConfigError(f"{text!r}: {quote or closing[-1]!r} is missing at its end")
