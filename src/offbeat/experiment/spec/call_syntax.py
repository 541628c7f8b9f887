"""Choices with settings in one text: `fedbuff(k=2,staleness=polynomial(a=1))`, `mine.py:CosBuff(k=3)`.

Each setting in the brackets is a change as for `--set`, so dotted keys such as `fedbuff(staleness.a=1)` are allowed.
Values are YAML and stay text here. Commas, brackets and equal signs inside of brackets or quotes belong to the value:
`fedfa(k=5,work={steps: 3, lr: 0.1})`. Paths, dotted keys and YAML values are not Python, so `ast` cannot parse them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from offbeat.core.errors import ConfigError

BRACKETS = {"(": ")", "[": "]", "{": "}"}
KEY = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True)
class ChoiceCall:
    """A name with settings; a setting whose value has settings is a call again."""

    name: str
    settings: tuple[tuple[str, str | ChoiceCall], ...] = ()

    def __str__(self) -> str:
        """Format the call as `parse_call` reads it."""
        settings = ",".join(f"{key}={value}" for key, value in self.settings)
        return f"{self.name}({settings})" if settings else self.name

    def changes(self, path: str) -> Iterator[str]:
        """Yield the equivalent arguments of `--set`: the choice, then its settings."""
        yield f"{path}={self.name}"
        for key, value in self.settings:
            if isinstance(value, ChoiceCall):
                yield from value.changes(f"{path}.{key}")
            else:
                yield f"{path}.{key}={value}"


def parse_call(text: str) -> ChoiceCall:
    """Parse a choice with optional settings; raise ConfigError with the position of a mistake."""
    call = text.strip()
    outside = list(_unquoted_characters(call))
    if not call:
        raise ConfigError("no name is given: write fedbuff, or fedbuff(k=2)")
    if not call.endswith(")"):
        return ChoiceCall(call)
    start = [position for position, character, depth in outside if character == "(" and depth == 0][-1]
    name, inside = call[:start].strip(), call[start + 1 : -1]
    if not name:
        raise ConfigError(f"{call!r} has no name before its brackets: write fedbuff(k=2)")
    commas = [position - 1 for position, mark, depth in _unquoted_characters(call[start:]) if (mark, depth) == (",", 1)]
    settings = tuple(_parse_setting(part, call) for part in _split_at(inside, commas)) if inside.strip() else ()
    keys = [key for key, _ in settings]
    duplicate = next((key for key in keys if keys.count(key) > 1), None)
    if duplicate is not None:
        raise ConfigError(f"{call!r}: {duplicate} is given twice")
    return ChoiceCall(name, settings)


def split_calls(text: str) -> list[str]:
    """Split a list at the commas outside of brackets: 'a,b(c=1,d=2)' has two parts."""
    return _split_at(
        text, [position for position, mark, depth in _unquoted_characters(text) if (mark, depth) == (",", 0)]
    )


def _split_at(text: str, commas: list[int]) -> list[str]:
    """Split a text at the commas with these positions."""
    ends = zip([-1, *commas], [*commas, len(text)], strict=True)
    return [text[start + 1 : end].strip() for start, end in ends]


def _parse_setting(text: str, call: str) -> tuple[str, str | ChoiceCall]:
    """Parse `key=value`; a value with settings is a call again."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value or KEY.fullmatch(key) is None:
        raise ConfigError(f"{call!r}: {text!r} is invalid: write setting=value, such as fedbuff(k=2,lr=0.5)")
    return key, parse_call(value) if value.endswith(")") and value[0] not in "'\"[{(" else value


def _unquoted_characters(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield position, character and bracket depth of all unquoted characters; a bracket is outside of itself.

    A quote starts only at the start of a value, so that names may contain apostrophes.
    """
    open_brackets: list[str] = []  # the closing bracket of each
    quote, previous, position = "", "(", 0
    while position < len(text):
        character = text[position]
        if quote:
            position += character == "\\" and quote == '"'  # skip the escaped character
            quote = "" if character == quote else quote
        elif open_brackets and character in "'\"" and previous in "=,:([{'\"":
            quote = character
        else:
            if character in BRACKETS.values() and (not open_brackets or open_brackets.pop() != character):
                raise ConfigError(f"{text!r}: the {character!r} at position {position + 1} has no opening bracket")
            yield position, character, len(open_brackets)
            if character in BRACKETS:
                open_brackets.append(BRACKETS[character])
        previous = previous if character.isspace() else character
        position += 1
    if open_brackets or quote:
        raise ConfigError(f"{text!r}: {quote or open_brackets[-1]!r} is missing at the end")
