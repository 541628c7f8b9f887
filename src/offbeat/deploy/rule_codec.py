"""Send local rules as a class name and fields; the code must exist at both ends and is never sent.

A rule is known if it inherits from LocalRule, is a dataclass and its module was imported. This holds for the rules of
registered strategies and of files that a site loads. Fields are checked against their annotations and must survive a
round trip.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

import offbeat
import offbeat.core.strategies  # imported so that their rules are known
from offbeat.core.errors import to_single_line, unknown_name
from offbeat.core.protocol import LocalRule
from offbeat.core.vector import Layout
from offbeat.deploy.tensor_codec import WireError
from offbeat.experiment.spec import is_user_code


def known_rules() -> dict[str, type]:
    """Map names, module:class, to the known rules."""
    return {f"{cls.__module__}:{cls.__qualname__}": cls for cls in _subclasses(LocalRule) if is_dataclass(cls)}


def to_fields(rule: LocalRule) -> dict[str, object]:
    """Convert a rule to its name and fields; raise WireError if it cannot be sent."""
    cls = type(rule)
    name = f"{cls.__module__}:{cls.__qualname__}"
    if known_rules().get(name) is not cls:
        raise WireError(
            f"the rule {cls.__qualname__} cannot be sent: a rule must be a dataclass that inherits LocalRule"
        )
    try:
        fields = _dump(cls, rule)
        if _load(cls, fields) == rule:
            return {"name": name, "fields": fields}
    except (PydanticUserError, ValidationError, NameError, ValueError, TypeError):
        pass
    raise WireError(
        f"the rule {to_single_line(rule, 80)} cannot be sent: its fields must be plain numbers, strings and tuples"
    )


def from_fields(tree: object) -> LocalRule:
    """Convert name and fields back to a rule; raise WireError if it is unknown or its fields are invalid."""
    if not (isinstance(tree, dict) and tree.keys() == {"name", "fields"} and isinstance(tree["name"], str)):
        raise WireError("a rule without a name and fields")
    cls = _find_rule(tree["name"])
    shown = to_single_line(tree["name"].rpartition(":")[2], 80)
    try:
        rule = _load(cls, tree["fields"])
        whole = _dump(cls, rule) == tree["fields"]
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:  # pydantic's and our own are ValueErrors
        raise WireError(f"the rule {shown} cannot have these fields: {to_single_line(error, 200)}") from None
    if not whole:
        raise WireError(f"the rule {shown} has other fields here: use the same version of offbeat at both ends")
    return rule


def code_digest(strategy: object) -> str:
    """Hash the code that determines a job's result, including a strategy from outside the package."""
    root = Path(offbeat.__file__).parent
    files = sorted(path for part in ("core", "training") for path in (root / part).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    # a site has no FILE.py:Name
    if not is_user_code(strategy) and not type(strategy).__module__.startswith("offbeat."):
        try:
            digest.update(inspect.getsource(type(strategy)).encode())
        except (OSError, TypeError):
            digest.update(type(strategy).__qualname__.encode())  # defined in a REPL: there is no source
    return digest.hexdigest()


def layout_digest(layout: Layout, dtype: object) -> str:
    """Hash the meaning of a vector: names, shapes and kinds of its slices, and its dtype."""
    slices = [[s.name, list(s.shape), s.kind] for s in layout.slices]
    return hashlib.sha256(json.dumps([str(dtype), slices]).encode()).hexdigest()


def _find_rule(name: str) -> type:
    """Return the class of a rule by its name."""
    rules = known_rules()
    if name in rules:
        return rules[name]
    class_name = name.rpartition(":")[2]  # a user file has another module name where it was loaded from elsewhere
    same = [cls for cls in rules.values() if cls.__qualname__ == class_name]
    if len(same) == 1:
        return same[0]
    choices = sorted({cls.__qualname__ for cls in rules.values()})
    raise WireError(f"{unknown_name('rule', to_single_line(class_name, 80), choices)}; its code must exist at the site")


def _subclasses(cls: type) -> Iterator[type]:
    """Yield all direct and indirect subclasses."""
    heirs: list[type] = cls.__subclasses__()
    for heir in heirs:
        yield heir
        yield from _subclasses(heir)


@lru_cache(maxsize=64)
def _adapter(cls: type) -> TypeAdapter[LocalRule]:
    return TypeAdapter(cls)


def _dump(cls: type, rule: LocalRule) -> object:
    """Convert a rule to JSON values."""
    return _adapter(cls).dump_python(rule, mode="json")


def _load(cls: type, fields: object) -> LocalRule:
    """Load a rule strictly from JSON, where a list is accepted for a tuple and an object for a dataclass."""
    return _adapter(cls).validate_json(json.dumps(fields, allow_nan=False), strict=True)
