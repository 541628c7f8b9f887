"""A state as plain data plus tensors, and back: what a checkpoint stores. No pickle, no code in the file.

`pack` turns a value into a JSON-able tree in which each distinct tensor is a number; `unpack` turns it back. Tensors
shared in the state stay shared. Dataclasses are stored by the name of their class and rebuilt through their
constructor; only classes of modules that are already imported are found again, so a file cannot make anything run.
Layouts, worlds and callables are not stored: a restored state takes them from `init(world)`.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError
from offbeat.core.protocol import World
from offbeat.core.vector import Layout

Tree = Any  # what json can hold
Put = Callable[[Tensor], int]  # stores a tensor, returns its number
Get = Callable[[int], Tensor]


@runtime_checkable
class SavesItself(Protocol):
    """A field of a state that knows how it is stored: what an engine's memory policy keeps for clients."""

    def save(self, put: Put) -> Tree: ...

    def restore(self, tree: Tree, get: Get) -> None: ...


MANY = 1000  # whole numbers from which on they are stored as a tensor


class TensorTable:
    """Tensors by number, each distinct one once."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def put(self, tensor: Tensor) -> int:
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)  # keeps it alive, so its id stays its own
        return number

    def get(self, number: int) -> Tensor:
        return self.tensors[number]


def pack(value: Any, put: Put) -> Tree:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return {"$tensor": put(value.detach())} if value.requires_grad else {"$tensor": put(value)}
    if isinstance(value, list):
        return _numbers(value, put) or [pack(v, put) for v in value]
    if isinstance(value, (tuple, dict)) and type(value) not in (tuple, dict):
        raise CheckpointError(
            f"a {type(value).__name__} cannot be saved: it would come back as a plain {type(value).__mro__[1].__name__}"
        )
    if isinstance(value, tuple):
        return {"$tuple": [pack(v, put) for v in value]}
    if isinstance(value, deque):
        return {"$deque": _numbers(value, put) or [pack(v, put) for v in value], "maxlen": value.maxlen}
    if isinstance(value, array):
        wide = array("d" if value.typecode in "fd" else "q", value)
        dtype = torch.float64 if wide.typecode == "d" else torch.int64
        return {
            "$array": value.typecode,
            "tensor": put(torch.frombuffer(wide, dtype=dtype) if wide else torch.zeros(0, dtype=dtype)),
        }
    if isinstance(value, Mapping):
        keys = _numbers(value.keys(), put)
        if keys and set(map(type, value.values())) == {NoneType}:  # a set that keeps its order
            return {"$keys": keys}
        values = _numbers(value.values(), put) if keys else None
        if keys and values:
            return {"$keys": keys, "values": values}
        return {"$map": [[pack(k, put), pack(v, put)] for k, v in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        if "<locals>" in cls.__qualname__:
            raise CheckpointError(f"{cls.__qualname__} cannot be saved: define the class at the top of its module")
        body = {f.name: pack(getattr(value, f.name), put) for f in fields(cls) if f.init}
        return {"$class": f"{cls.__module__}:{cls.__qualname__}", "fields": body}
    if isinstance(value, (set, frozenset)):
        raise CheckpointError("a set cannot be saved: its order would not survive; use a dict with None values")
    raise CheckpointError(f"a {type(value).__name__} cannot be saved in a checkpoint")


def _numbers(values: Collection[Any], put: Put) -> Tree | None:
    """Many whole numbers as a tensor: a million clients as text cost seconds. None if they are few, or not all of
    them are.
    """
    if len(values) < MANY or set(map(type, values)) != {int}:
        return None
    try:
        return {"$numbers": put(torch.frombuffer(array("q", values), dtype=torch.int64))}
    except OverflowError:
        return None


def unpack(tree: Tree, get: Get) -> Any:
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


def expect(kind: type, value: Any, name: str) -> Any:
    """The value, if it is what a checkpoint should have under that name."""
    if not isinstance(value, kind):
        raise CheckpointError(f"it does not hold what it should: its {name} is a {type(value).__name__}")
    return value


def pack_state(state: Any, put: Put) -> Tree:
    """A strategy's state, field by field, without what comes from `init`."""
    return {
        f.name: {"$store": value.save(put)} if isinstance(value, SavesItself) else pack(value, put)
        for f in fields(state)
        if not _from_init(value := getattr(state, f.name))
    }


def unpack_state(fresh: Any, tree: Tree, get: Get) -> Any:
    """Fill a state just made by `init(world)` with the saved fields; one the strategy has got since must have a
    default.
    """
    without_default = {f.name for f in fields(fresh) if f.default is MISSING and f.default_factory is MISSING}
    wanted = without_default & pack_state(fresh, lambda _: 0).keys()
    if not wanted <= tree.keys() <= {f.name for f in fields(fresh)}:
        raise CheckpointError(f"it does not hold what it should: its state has {', '.join(tree)}")
    for name, saved in tree.items():
        held = getattr(fresh, name)
        if isinstance(saved, dict) and "$store" in saved and isinstance(held, SavesItself):
            held.restore(saved["$store"], get)
            continue
        value = unpack(saved, get)
        if not _of_a_kind(value, held):
            raise CheckpointError(f"it does not hold what it should: its state's {name} is a {type(value).__name__}")
        if isinstance(held, MutableMapping) and not isinstance(held, dict):
            held.clear()  # a store of the engine's: keep the store, take the contents
            held.update(value)
        else:
            setattr(fresh, name, value)
    return fresh


def _of_a_kind(saved: Any, held: Any) -> bool:
    """May what was saved stand where this does? Numbers and None are whatever they came to be."""
    loose = (NoneType, bool, int, float)
    if isinstance(saved, loose) and isinstance(held, loose):
        return True
    if saved is None or held is None:
        return True
    return type(saved) is type(held) or any(
        isinstance(saved, kind) and isinstance(held, kind) for kind in (Mapping, Tensor)
    )


def described(value: Any, text: str) -> bool:
    """Is this text the repr of an equal value, perhaps of before its class had all its fields? Those have their
    defaults then.
    """
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value) == text
    shown = [f for f in fields(value) if f.repr and (f"{f.name}=" in text or getattr(value, f.name) != f.default)]
    return f"{type(value).__qualname__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in shown)})" == text


def _from_init(value: Any) -> bool:
    known_clients = isinstance(value, Mapping) and not isinstance(value, MutableMapping)
    plain_function = callable(value) and not is_dataclass(value) and not isinstance(value, Tensor)
    return isinstance(value, (Layout, World)) or known_clients or plain_function


def _find_class(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise CheckpointError(f"the checkpoint holds a {name}, which this program does not have")
    return found
