"""How much a strategy's state holds, in memory or on disk: its tensors, each counted once however often it is referred
to.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from offbeat.engine.client_store import ClientStore

_LOOK = 100  # entries
_SCALARS = (int, float, str, bool, type(None))


def bytes_held(state: Any) -> int:
    storages: dict[int, int] = {}
    _walk(state, storages)
    return sum(storages.values())


def _walk(value: Any, storages: dict[int, int]) -> None:
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    elif isinstance(value, ClientStore):
        for row in value.rows():  # without reading those that are on disk
            if row.tensor is None:
                storages[-id(row)] = row.kind.nbytes
            else:
                _walk(row.tensor, storages)
    elif isinstance(value, Mapping):
        _walk_all(value.values(), storages)
    elif isinstance(value, (list, tuple, deque)):
        _walk_all(value, storages)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            _walk(getattr(value, f.name), storages)


def _walk_all(values: Iterable[Any], storages: dict[int, int]) -> None:
    """A collection whose first entries are numbers holds numbers: a million of them are not worth looking at one by
    one.
    """
    tensors = False
    for i, value in enumerate(values):
        if not isinstance(value, (*_SCALARS, array)):
            tensors = True
            _walk(value, storages)
        elif i >= _LOOK and not tensors:
            return
