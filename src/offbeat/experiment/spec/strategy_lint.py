"""Checks of a user's strategy beyond the laws: what experiment files, `offbeat list` and the engine need.

`check_form` tests what a run requires; `suggest_improvements` gives advice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from math import nan

from offbeat.core.about import About
from offbeat.core.errors import ConfigError, describe_error
from offbeat.core.protocol import Strategy
from offbeat.experiment.spec.choices import CHOICES, find_choice
from offbeat.experiment.spec.serialization import experiment_from_values, to_values

FROZEN = "frozen dataclass"
STORED = "settings"
MEANING = {
    FROZEN: "it prints, compares and hashes by its settings, and cannot change during a run",
    STORED: "an experiment file can store every setting and reads it back unchanged",
}


@dataclass(frozen=True)
class LintResult:
    """The result of one check."""

    rule: str
    passed: bool
    message: str = ""

    @property
    def meaning(self) -> str:
        """Explain the rule."""
        return MEANING[self.rule]


def check_form(reference: str, strategy: Strategy) -> list[LintResult]:
    """Check the class and the settings of a strategy that is written FILE.py:Name."""
    try:
        find_choice("strategy", reference)
    except ConfigError as error:
        return [LintResult(FROZEN, False, str(error))]
    problem = _find_unstorable(strategy)
    return [LintResult(FROZEN, True), LintResult(STORED, problem is None, problem or "")]


def suggest_improvements(strategy: Strategy) -> Iterator[str]:
    """Yield advice on optional improvements."""
    cls = type(strategy)
    if is_dataclass(cls) and (cls.__doc__ or "").startswith(f"{cls.__name__}("):  # written by @dataclass
        yield f"add a docstring of one line below class {cls.__name__}: lists and pages print it"
    if not isinstance(getattr(cls, "about", None), About):
        yield (
            'add about: ClassVar[About] = About("asynchronous", keeps="nothing", uploads="model"), from '
            "offbeat.core.about, for 'offbeat list'"
        )
    for name, value, annotation in _accepted_invalid_values(strategy):
        yield f"{name} = {value} is accepted: write {annotation}, from offbeat.core.settings, and inherit Settings"


def _accepted_invalid_values(strategy: Strategy) -> Iterator[tuple[str, float, str]]:
    """Yield settings that accept NaN or -1, the value, and an annotation that would reject it."""
    if not is_dataclass(strategy):
        return
    for f in fields(strategy):
        value = getattr(strategy, f.name)
        if type(value) is float and _accepts_value(strategy, f.name, nan):
            yield f.name, nan, f"{f.name}: Rate (positive), Share (in (0, 1]) or NonNegative"
        if type(value) is int and value >= 1 and _accepts_value(strategy, f.name, -1):
            yield f.name, -1, f'{f.name}: Annotated[int, WHOLE, least(1, "at least 1")]'


def _accepts_value(strategy: Strategy, name: str, value: float) -> bool:
    """Tell whether a strategy can be created with this value of a setting."""
    try:
        replace(strategy, **{name: value})  # type: ignore[type-var]
    except Exception:
        return False
    return True


def _find_unstorable(strategy: Strategy) -> str | None:
    """Describe the first setting that an experiment file cannot store."""
    for f in fields(strategy):  # type: ignore[arg-type]
        setting = getattr(strategy, f.name)
        if f.init and (alternative := _storable_alternative(to_values(setting, f.name), f.name)) is not None:
            return f"{f.name} is a {type(setting).__name__}, which a file cannot store: {alternative}"
    try:
        restored = experiment_from_values({"strategy": to_values(strategy, "strategy")}).strategy
    except Exception as error:  # from pydantic, or from annotations that cannot be resolved
        return f"its settings cannot be read back: {describe_error(error)}"
    if restored != strategy:
        return f"it reads back as {restored!r}: use tuples and plain values, and do not change them in __post_init__"
    return None


def _storable_alternative(values: object, name: str) -> str | None:
    """Suggest an alternative to a value that a file cannot store; None if it can."""
    if values is None or isinstance(values, (bool, int, float, str)):
        return None
    if isinstance(values, dict) and (name in CHOICES or all(isinstance(key, str) for key in values)):
        items = [(key, value) for key, value in values.items()]
    elif isinstance(values, list):
        items = [(name, value) for value in values]
    elif callable(values):
        return "make it a frozen dataclass with __call__, as in offbeat.core.parts.staleness"
    else:
        return "use numbers, text, tuples of them, or a frozen dataclass of these"
    return next((hint for key, value in items if (hint := _storable_alternative(value, key)) is not None), None)
