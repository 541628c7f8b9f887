"""What the settings of a strategy, a data set, a model or a law are, read off its code: names and defaults from the
dataclass, what is allowed from the annotations, what is meant from the comments beside them.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from offbeat.core.protocol import LocalWork
from offbeat.core.settings import WHOLE, Must, PathSetting
from offbeat.engine.until import Target, Until
from offbeat.experiment.spec.choices import CHOICE_TITLES, CHOICES
from offbeat.experiment.spec.serialization import describe_type, to_values

# settings that mean the same wherever they stand
SHARED_MEANINGS = {
    "work": "of a job: steps, epochs, lr [default: those of the experiment's training]",
    "concurrency": "clients at work at once, at most",
    "max_staleness": "an update that is older, in versions, is rejected",
    "staleness": "what an update of that age counts",
    "client_weight": "what a client counts, whatever the age of its update",
    "exclude_buffered": "a client whose update waits is not sent work before the step",
    "sample": "clients of a round: how many, or which share of them",
    "deadline": "seconds after which a round closes without those who are late",
    "over_select": "share of clients asked beyond those that are needed",
    "jitter": "how much one job differs from the next: deviation of a factor around 1",
    "unit": "what the seconds are of: a job, or a step",
}
TYPE_TITLES: Mapping[Any, str] = {Until: "text, such as 3600s or 500updates", Target: "text, such as acc=0.9"}


@dataclass(frozen=True)
class SettingDoc:
    name: str
    default: str | None  # as a file has it; None: it must be given
    allowed: str
    meaning: str

    def to_values(self) -> dict[str, Any]:
        return asdict(self)


def describe_settings(cls: type) -> list[SettingDoc]:
    hints, comments = get_type_hints(cls, include_extras=True), _comments(cls)
    return [
        SettingDoc(
            f.name,
            _default(f),
            _allowed(f.name, hints[f.name]),
            comments.get(f.name) or SHARED_MEANINGS.get(f.name, ""),
        )
        for f in fields(cls)
        if f.init
    ]


def changed_settings(value: Any) -> dict[str, Any]:
    """The settings of a value that are not the defaults of its class."""
    if not is_dataclass(value):
        return {}
    made = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return {name: to_values(v, name) for name, v in made.items() if not _is_default(type(value), name, v)}


def _is_default(cls: type, name: str, value: Any) -> bool:
    given = next(f for f in fields(cls) if f.name == name)
    default = given.default if given.default_factory is MISSING else given.default_factory()
    return bool(default is not MISSING and default == value)


def to_yaml_line(value: Any) -> str:
    """As an experiment file has it, in one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _default(given: Field[Any]) -> str | None:
    value = given.default if given.default_factory is MISSING else given.default_factory()
    if value is MISSING:
        return None
    plain = to_values(value, given.name)
    if isinstance(value, LocalWork):
        plain = {key: setting for key, setting in plain.items() if setting is not None}
    return to_yaml_line(plain)


def _allowed(name: str, hint: Any) -> str:
    if name in CHOICES:
        word, listed = CHOICE_TITLES.get(name, name), CHOICES[name]
        return f"{_article(word)}{word}: {', '.join(listed) if len(listed) < 8 else 'by name'}"
    bare, musts = _bare(hint), [_said(must) for must in _musts(hint)]
    if bare == LocalWork or LocalWork in get_args(bare):
        return "steps, epochs, lr"
    return "; ".join([_file(hint) or _named(bare), *musts])


def _named(hint: Any) -> str:
    """The kind of a value; one of our own is written in its way, or is a section."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not any(is_dataclass(part) for part in parts):
        return describe_type(hint)
    return " or ".join(
        TYPE_TITLES.get(part, "a section") if is_dataclass(part) else describe_type(part) for part in parts
    )


def _article(word: str) -> str:
    return "" if word in ("delays", "faults", "streaming", "availability") else "a "


def _said(must: Must) -> str:
    return must.message.removeprefix("must be ").removeprefix("must lie ")


def _file(hint: Any) -> str | None:
    return "a path" if any(isinstance(extra, PathSetting) for extra in _extras(hint)) else None


def _musts(hint: Any) -> list[Must]:
    return [extra for extra in _extras(hint) if isinstance(extra, Must) and extra is not WHOLE]


def _extras(hint: Any) -> list[Any]:
    """What the annotation, or those of the members of a union, carry."""
    own = list(hint.__metadata__) if get_origin(hint) is Annotated else []
    return own + [extra for part in get_args(hint) for extra in _extras(part)]


def _bare(hint: Any) -> Any:
    """Without what annotations carry."""
    return get_type_hints(type("Bare", (), {"__annotations__": {"x": hint}}))["x"]


@cache
def _comments(cls: type) -> Mapping[str, str]:
    """Of each setting what stands beside it, or above; the class itself before those it inherits from."""
    found: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        try:
            found |= _comments_in(textwrap.dedent(inspect.getsource(part)))
        except (OSError, TypeError):  # of Python itself, or made where there is no file
            continue
    return found


def _comments_in(source: str) -> dict[str, str]:
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    beside = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    alone = {line for line in beside if source.splitlines()[line - 1].lstrip().startswith("#")}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        lines = [line for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in beside]
        above = node.lineno - 1
        while not lines and above in alone:
            above -= 1
        lines = lines or [line for line in range(above + 1, node.lineno) if line in alone]
        if lines:
            found[node.target.id] = " ".join(beside[line] for line in lines)
    return found
