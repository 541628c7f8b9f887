"""Rules on the wire: a name and fields. The code must be at both ends already: nothing that runs is ever sent.

A rule is known that inherits from LocalRule, is a dataclass, and whose module was imported: every registered strategy's
are, and those of the files a site loads. Fields are checked against their annotations and must read back as they came.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

import offbeat
import offbeat.core.strategies  # their rules are known from now on
from offbeat.core.errors import plain_text, unknown
from offbeat.core.protocol import LocalRule
from offbeat.core.vector import Layout
from offbeat.deploy.tensor_codec import WireError
from offbeat.experiment.spec.choices import is_own


def known() -> dict[str, type]:
    """Rules by their name, module:class."""
    return {f"{cls.__module__}:{cls.__qualname__}": cls for cls in _heirs(LocalRule) if is_dataclass(cls)}


def to_fields(rule: LocalRule) -> dict[str, Any]:
    cls = type(rule)
    name = f"{cls.__module__}:{cls.__qualname__}"
    if known().get(name) is not cls:
        raise WireError(f"the rule {cls.__qualname__} cannot travel: a rule is a dataclass that inherits LocalRule")
    try:
        fields = _dumped(cls, rule)
        if _loaded(cls, fields) == rule:
            return {"name": name, "fields": fields}
    except (PydanticUserError, ValidationError, NameError, ValueError, TypeError):
        pass
    raise WireError(
        f"the rule {plain_text(rule, 80)} cannot travel: its fields are not plain numbers, words and tuples"
    )


def of_fields(tree: Any) -> LocalRule:
    if not (isinstance(tree, dict) and tree.keys() == {"name", "fields"} and isinstance(tree["name"], str)):
        raise WireError("a rule without a name and fields")
    cls = _found(tree["name"])
    shown = plain_text(tree["name"].rpartition(":")[2], 80)
    try:
        rule: LocalRule = _loaded(cls, tree["fields"])
        whole = _dumped(cls, rule) == tree["fields"]
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:  # pydantic's and our own are ValueErrors
        raise WireError(f"the rule {shown} cannot have these fields: {plain_text(error, 200)}") from None
    if not whole:
        raise WireError(f"the rule {shown} has other fields here: the same version of offbeat is needed at both ends")
    return rule


def code_digest(strategy: object) -> str:
    """Of the code that decides what a job's result is: equal digests, equal rules. A strategy from elsewhere counts."""
    root = Path(offbeat.__file__).parent
    files = sorted(path for part in ("core", "client") for path in (root / part).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    if not is_own(strategy) and not type(strategy).__module__.startswith("offbeat."):  # a site has no FILE.py:Name
        try:
            digest.update(inspect.getsource(type(strategy)).encode())
        except (OSError, TypeError):
            digest.update(type(strategy).__qualname__.encode())  # made at a prompt: there is no source
    return digest.hexdigest()


def layout_digest(layout: Layout, dtype: object) -> str:
    """Of what a vector means: the names, shapes and kinds of its slices, and its dtype."""
    slices = [[s.name, list(s.shape), s.kind] for s in layout.slices]
    return hashlib.sha256(json.dumps([str(dtype), slices]).encode()).hexdigest()


def _found(name: str) -> type:
    rules = known()
    if name in rules:
        return rules[name]
    own = name.rpartition(":")[2]  # a file of one's own has another name where it was loaded from elsewhere
    same = [cls for cls in rules.values() if cls.__qualname__ == own]
    if len(same) == 1:
        return same[0]
    choices = sorted({cls.__qualname__ for cls in rules.values()})
    raise WireError(f"{unknown('rule', plain_text(own, 80), choices)}; its code must be at the site")


def _heirs(cls: type) -> Iterator[type]:
    heirs: list[type] = cls.__subclasses__()
    for heir in heirs:
        yield heir
        yield from _heirs(heir)


@lru_cache(maxsize=64)
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _dumped(cls: type, rule: Any) -> Any:
    return _adapter(cls).dump_python(rule, mode="json")


def _loaded(cls: type, fields: Any) -> Any:
    """As JSON: there, strictly, a list is a tuple's and an object a dataclass's."""
    return _adapter(cls).validate_json(json.dumps(fields, allow_nan=False), strict=True)
