"""Documentation of the settings of strategies, data sets, models and laws, derived from their dataclasses.

Names and defaults come from the fields, allowed values from the annotations, and meanings from the comments beside or
above the fields. A comment stays on the line of its field, where `Annotated[..., Doc("...")]` would need several.
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
from typing import Annotated, Union, get_args, get_origin, get_type_hints

from offbeat.core.protocol import LocalWork
from offbeat.core.settings import WHOLE, Must, PathSetting
from offbeat.engine import Target, Until
from offbeat.experiment.spec.choices import CHOICE_TITLES, CHOICES
from offbeat.experiment.spec.serialization import Hint, describe_type, to_values

SHARED_MEANINGS = {
    "work": "of a job: steps, epochs, lr [default: those of the experiment's training]",
    "concurrency": "limit of clients that work at the same time",
    "max_staleness": "updates with a higher staleness (in versions) are rejected",
    "staleness": "weight of an update by its staleness",
    "client_weight": "weight of a client, independent of staleness",
    "exclude_buffered": "send no work to clients with a buffered update until the step",
    "sample": "clients per round: a number, or a share",
    "deadline": "seconds after which a round ends without the updates that are late",
    "over_select": "share of additional clients per round",
    "jitter": "variation between jobs: standard deviation of a factor around 1",
    "unit": "what the seconds refer to: a job, or a step",
}  # settings with the same meaning everywhere
TYPE_TITLES: Mapping[Hint, str] = {Until: "text, such as 3600s or 500updates", Target: "text, such as acc=0.9"}
WITHOUT_ARTICLE = ("delays", "faults", "streaming", "availability")


@dataclass(frozen=True)
class SettingDoc:
    """The documentation of one setting."""

    name: str
    default: str | None  # as in a file; None: the setting is required
    allowed: str
    meaning: str

    def to_values(self) -> dict[str, str | None]:
        """Return the fields by name."""
        return asdict(self)


def describe_settings(cls: type) -> list[SettingDoc]:
    """Document the settings of a dataclass."""
    plain, annotated = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    comments = _field_comments(cls)
    return [
        SettingDoc(
            f.name,
            _describe_default(f),
            _describe_allowed(f.name, plain[f.name], _list_annotations(annotated[f.name])),
            comments.get(f.name) or SHARED_MEANINGS.get(f.name, ""),
        )
        for f in fields(cls)
        if f.init
    ]


def changed_settings(value: object) -> dict[str, object]:
    """Return the settings that differ from the defaults of the class."""
    if not is_dataclass(value):
        return {}
    settings = {f: getattr(value, f.name) for f in fields(value) if f.init}
    return {f.name: to_values(setting, f.name) for f, setting in settings.items() if setting != _field_default(f)}


def _field_default(f: Field[object]) -> object:
    """Return the default of a field, or MISSING."""
    return f.default if f.default_factory is MISSING else f.default_factory()


def _describe_default(f: Field[object]) -> str | None:
    """Format the default of a field as in a file; None if the setting is required."""
    from offbeat.experiment.spec.yaml_text import to_yaml_line

    default = _field_default(f)
    if default is MISSING:
        return None
    values = to_values(default, f.name)
    if isinstance(default, LocalWork):
        values = {key: value for key, value in values.items() if value is not None}
    return to_yaml_line(values)


def _describe_allowed(name: str, hint: Hint, annotations: list[object]) -> str:
    """Describe the values that a setting allows."""
    if name in CHOICES:
        title, choices = CHOICE_TITLES.get(name, name), CHOICES[name]
        article = "" if title in WITHOUT_ARTICLE else "a "
        return f"{article}{title}: {', '.join(choices) if len(choices) < 8 else 'by name'}"
    if hint == LocalWork or LocalWork in get_args(hint):
        return "steps, epochs, lr"
    is_path = any(isinstance(annotation, PathSetting) for annotation in annotations)
    constraints = [
        must.message.removeprefix("must be ").removeprefix("must lie ")
        for must in annotations
        if isinstance(must, Must) and must is not WHOLE
    ]
    return "; ".join(["a path" if is_path else _describe_hint(hint), *constraints])


def _describe_hint(hint: Hint) -> str:
    """Describe the values of a type, including sections and texts."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not any(is_dataclass(member) for member in members):
        return describe_type(hint)
    return " or ".join(TYPE_TITLES.get(m, "a section") if is_dataclass(m) else describe_type(m) for m in members)


def _list_annotations(hint: Hint) -> list[object]:
    """Return the annotations of a type, or of the members of a union."""
    direct = list(get_args(hint)[1:]) if get_origin(hint) is Annotated else []
    return direct + [annotation for part in get_args(hint) for annotation in _list_annotations(part)]


@cache
def _field_comments(cls: type) -> Mapping[str, str]:
    """Return the comments on the fields of a class and of its base classes."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            comments |= _comments_in_source(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # a class without source file
            continue
    return comments


def _comments_in_source(source: str) -> dict[str, str]:
    """Return the comments on the fields of the class in a source."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for node in definition.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        lines = [n for n in range(node.lineno, (node.end_lineno or node.lineno) + 1) if n in comments]
        first = node.lineno
        while not lines and first - 1 in comments and comments[first - 1].line.lstrip().startswith("#"):
            first -= 1
        lines = lines or list(range(first, node.lineno))
        if lines:
            texts[node.target.id] = " ".join(comments[n].string.lstrip("# ") for n in lines)
    return texts
