"""Beyond the laws: what experiment files, `offbeat list` and the engine expect of a strategy of one's own.

What a run needs is a rule that may be broken; the rest is advice, with the part that does it right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from math import nan
from typing import Any

from offbeat.core.about import About
from offbeat.core.errors import ConfigError, describe_error
from offbeat.experiment.spec.choices import CHOICES, find_choice
from offbeat.experiment.spec.serialization import experiment_from_values, to_values

FROZEN = "frozen dataclass"
STORED = "settings"
MEANING = {
    FROZEN: "it prints, compares and hashes by its settings, and cannot change while it runs",
    STORED: "an experiment file can hold every setting, and reads back as it was written",
}


@dataclass(frozen=True)
class LintResult:
    rule: str
    passed: bool
    message: str = ""

    @property
    def meaning(self) -> str:
        return MEANING[self.rule]


def check_form(reference: str, strategy: Any) -> list[LintResult]:
    """What is right and wrong about the form of a strategy that is written FILE.py:Name."""
    try:
        find_choice("strategy", reference)
    except ConfigError as error:
        return [LintResult(FROZEN, False, str(error))]
    wrong = _unstorable(strategy)
    return [LintResult(FROZEN, True), LintResult(STORED, wrong is None, wrong or "")]


def suggest_improvements(strategy: Any) -> Iterator[str]:
    """What may be left as it is, and would be better."""
    cls = type(strategy)
    if is_dataclass(cls) and (cls.__doc__ or "").startswith(f"{cls.__name__}("):  # what dataclass writes itself
        yield f'say in one line what it does, """so""", below class {cls.__name__}: lists and pages print it'
    if not isinstance(getattr(cls, "about", None), About):
        yield (
            'about: ClassVar[About] = About("asynchronous", keeps="nothing", uploads="model"), of offbeat.core.about, '
            "says what 'offbeat list' tells of a method"
        )
    for name, odd, instead in _accepted(strategy):
        yield f"{name} = {odd} is accepted: write {instead}, of offbeat.core.settings, and inherit Settings"


def _accepted(strategy: Any) -> Iterator[tuple[str, Any, str]]:
    """Settings that take what nobody can mean, and the annotation that would not."""
    for f in fields(strategy) if is_dataclass(strategy) else ():
        value = getattr(strategy, f.name)
        if type(value) is float and _takes(strategy, f.name, nan):
            yield f.name, nan, f"{f.name}: Rate (positive), Share (in (0, 1]) or NonNegative"
        if type(value) is int and value >= 1 and _takes(strategy, f.name, -1):
            yield f.name, -1, f'{f.name}: Annotated[int, WHOLE, least(1, "at least 1")]'


def _takes(strategy: Any, name: str, value: Any) -> bool:
    try:
        replace(strategy, **{name: value})
    except Exception:
        return False
    return True


def _unstorable(strategy: Any) -> str | None:
    for f in fields(strategy):
        given = getattr(strategy, f.name)
        if f.init and (cure := _cure(to_values(given, f.name), f.name)) is not None:
            return f"{f.name} is a {type(given).__name__}, which no file can hold: {cure}"
    try:
        again = experiment_from_values({"strategy": to_values(strategy, "strategy")}).strategy
    except Exception as error:  # of pydantic, of annotations that cannot be resolved
        return f"its settings cannot be read back: {describe_error(error)}"
    if again != strategy:
        return f"it reads back as {again!r}: settings are tuples and plain values, and __post_init__ keeps them so"
    return None


def _cure(plain: Any, name: str) -> str | None:
    """For what a file cannot hold; None where it can."""
    if plain is None or isinstance(plain, (bool, int, float, str)):
        return None
    if isinstance(plain, dict) and (name in CHOICES or all(isinstance(key, str) for key in plain)):
        return next((cure for key, value in plain.items() if (cure := _cure(value, key)) is not None), None)
    if isinstance(plain, list):
        return next((cure for value in plain if (cure := _cure(value, name)) is not None), None)
    if callable(plain):
        return "make it a frozen dataclass with __call__, as offbeat.core.parts.staleness has them"
    return "give numbers, words, tuples of them, or a frozen dataclass of such"
