"""Conversion of states to JSON data plus tensors and back, for checkpoints without pickle.

Each distinct tensor becomes a number in the JSON tree, so shared tensors stay shared. Dataclasses are stored by class
name and rebuilt through their constructor; only classes of imported modules are found, so a file cannot execute code.
Layouts, worlds and callables are not stored: a restored state takes them from `init(world)`.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError
from offbeat.core.protocol import World
from offbeat.core.vector import Layout

Tree = Any  # JSON data
Put = Callable[[Tensor], int]  # stores a tensor and returns its number
Get = Callable[[int], Tensor]
T = TypeVar("T")


@runtime_checkable
class SavesItself(Protocol):
    """A field of a state that stores itself, such as the per-client stores of an engine."""

    def save(self, put: Put) -> Tree:
        """Return the contents as a JSON tree."""
        ...

    def restore(self, tree: Tree, get: Get) -> None:
        """Replace the contents by saved ones."""
        ...


TENSOR_MIN_LENGTH = 1000  # longer collections of integers are stored as a tensor


class TensorTable:
    """A list of distinct tensors, addressed by number."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def put(self, tensor: Tensor) -> int:
        """Return the number of a tensor, after adding it if it is new."""
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)  # keeps the tensor alive, so its id is not reused
        return number

    def get(self, number: int) -> Tensor:
        """Return the tensor with a number."""
        return self.tensors[number]


def pack(value: object, put: Put) -> Tree:
    """Convert a value to a JSON tree; `put` stores its tensors."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    cls = type(value)
    if isinstance(value, Tensor):
        return {"$tensor": put(value.detach() if value.requires_grad else value)}
    if isinstance(value, list):
        return _pack_integers(value, put) or [pack(v, put) for v in value]
    if isinstance(value, (tuple, dict)) and cls not in (tuple, dict):
        raise CheckpointError(f"a {cls.__name__} cannot be saved: it would be restored as a {cls.__mro__[1].__name__}")
    if isinstance(value, tuple):
        return {"$tuple": [pack(v, put) for v in value]}
    if isinstance(value, deque):
        return {"$deque": _pack_integers(value, put) or [pack(v, put) for v in value], "maxlen": value.maxlen}
    if isinstance(value, array):
        code, dtype = ("d", torch.float64) if value.typecode in "fd" else ("q", torch.int64)
        numbers = torch.frombuffer(array(code, value), dtype=dtype) if value else torch.zeros(0, dtype=dtype)
        return {"$array": value.typecode, "tensor": put(numbers)}
    if isinstance(value, Mapping):
        keys = _pack_integers(value.keys(), put)
        if keys and set(map(type, value.values())) == {NoneType}:  # a dict used as an ordered set
            return {"$keys": keys}
        values = _pack_integers(value.values(), put) if keys else None
        if keys and values:
            return {"$keys": keys, "values": values}
        return {"$map": [[pack(k, put), pack(v, put)] for k, v in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        if "<locals>" in cls.__qualname__:
            raise CheckpointError(
                f"{cls.__qualname__} cannot be saved: define the class at the top level of its module"
            )
        body = {f.name: pack(getattr(value, f.name), put) for f in fields(value) if f.init}
        return {"$class": f"{cls.__module__}:{cls.__qualname__}", "fields": body}
    if isinstance(value, (set, frozenset)):
        raise CheckpointError("a set cannot be saved: its order would be lost; use a dict with None values")
    raise CheckpointError(f"a {cls.__name__} cannot be saved in a checkpoint")


def _pack_integers(values: Collection[object], put: Put) -> Tree | None:
    """Store many integers as a tensor, because text would cost seconds per million clients; None if not applicable."""
    if len(values) < TENSOR_MIN_LENGTH or set(map(type, values)) != {int}:
        return None
    try:
        return {"$numbers": put(torch.frombuffer(array("q", values), dtype=torch.int64))}
    except OverflowError:
        return None


def unpack(tree: Tree, get: Get) -> Any:
    """Convert a JSON tree made by `pack` back to the value."""
    if isinstance(tree, list):
        return [unpack(v, get) for v in tree]
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"$tensor": int(number)}:
            return get(number)
        case {"$tuple": list(items)}:
            return tuple(unpack(v, get) for v in items)
        case {"$numbers": int(number)}:
            return get(number).tolist()
        case {"$deque": items, "maxlen": maxlen}:
            return deque(unpack(items, get), maxlen)
        case {"$array": str(code), "tensor": int(number)}:
            return array(code, get(number).tolist())
        case {"$map": list(pairs)}:
            return {unpack(k, get): unpack(v, get) for k, v in pairs}
        case {"$keys": keys, "values": values}:
            return dict(zip(unpack(keys, get), unpack(values, get), strict=True))
        case {"$keys": keys}:
            return dict.fromkeys(unpack(keys, get))
        case {"$class": str(name), "fields": dict(body)}:
            return _find_class(name)(**{k: unpack(v, get) for k, v in body.items()})
    raise CheckpointError(f"unreadable entry in a checkpoint: {str(tree)[:80]}")


def expect_type(kind: type, value: object, name: str) -> Any:
    """Return the value of a checkpoint's entry, or raise CheckpointError if it has another type."""
    if not isinstance(value, kind):
        raise CheckpointError(f"unexpected content: {name} is a {type(value).__name__}")
    return value


def pack_state(state: Any, put: Put) -> dict[str, Tree]:
    """Convert a strategy's state field by field, without the fields that `init` provides."""
    return {
        f.name: {"$store": value.save(put)} if isinstance(value, SavesItself) else pack(value, put)
        for f in fields(state)
        if not _comes_from_init(value := getattr(state, f.name))
    }


def unpack_state(fresh: T, tree: Tree, get: Get) -> T:
    """Fill a state just created by `init(world)` with the saved fields; fields not saved must have a default."""
    known = fields(fresh)  # type: ignore[arg-type]
    without_default = {f.name for f in known if f.default is MISSING and f.default_factory is MISSING}
    required = without_default & pack_state(fresh, lambda _: 0).keys()
    if not required <= tree.keys() <= {f.name for f in known}:
        raise CheckpointError(f"unexpected content: its state has the fields {', '.join(tree)}")
    for name, saved in tree.items():
        current = getattr(fresh, name)
        if isinstance(saved, dict) and "$store" in saved and isinstance(current, SavesItself):
            current.restore(saved["$store"], get)
            continue
        value = unpack(saved, get)
        if not _is_compatible(value, current):
            raise CheckpointError(f"unexpected content: its state's {name} is a {type(value).__name__}")
        if isinstance(current, MutableMapping) and not isinstance(current, dict):
            current.clear()  # a store of the engine: keep the object, replace its contents
            current.update(value)
        else:
            setattr(fresh, name, value)
    return fresh


def _is_compatible(saved: object, current: object) -> bool:
    """Return whether a saved value may replace the current one; numbers and None replace each other."""
    if saved is None or current is None or type(saved) is type(current):
        return True
    groups: tuple[tuple[type, ...], ...] = ((int, float), (Mapping,), (Tensor,))  # a bool is an int
    return any(isinstance(saved, group) and isinstance(current, group) for group in groups)


def matches_repr(value: object, text: str) -> bool:
    """Return whether the text is the repr of an equal value, possibly without fields that have their defaults."""
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value) == text
    shown = [f for f in fields(value) if f.repr and (f"{f.name}=" in text or getattr(value, f.name) != f.default)]
    return f"{type(value).__qualname__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in shown)})" == text


def _comes_from_init(value: object) -> bool:
    """Return whether `init` provides this value of a field: layout, world, known clients or a function."""
    known_clients = isinstance(value, Mapping) and not isinstance(value, MutableMapping)
    plain_function = callable(value) and not is_dataclass(value) and not isinstance(value, Tensor)
    return isinstance(value, (Layout, World)) or known_clients or plain_function


def _find_class(name: str) -> Callable[..., object]:
    """Return the dataclass `module:name` of an imported module."""
    module, _, qualname = name.partition(":")
    cls: object = sys.modules.get(module)
    for part in qualname.split("."):
        cls = getattr(cls, part, None)
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise CheckpointError(f"the checkpoint contains a {name}, which this program does not have")
    return cls
