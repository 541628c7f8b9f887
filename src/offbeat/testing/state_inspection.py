"""Comparison, reloading and checking of states, for the laws."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from offbeat.core.protocol import Strategy, World
from offbeat.core.snapshot import TensorTable, pack, pack_state, unpack_state
from offbeat.core.vector import Layout


def reload_state(strategy: Strategy, state: Any, world: World) -> Any:
    """Save and load a state as a checkpoint does, through text and copied tensors."""
    table = TensorTable()
    text = json.dumps(pack_state(state, table.put))
    copies = [tensor.clone() for tensor in table.tensors]
    return unpack_state(strategy.init(world), json.loads(text), copies.__getitem__)


def identical(a: object, b: object) -> bool:
    """Compare two values bit for bit, including dataclasses, mappings and sequences."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if is_dataclass(a) and not isinstance(a, type):
        return all(identical(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


def copy_strategy(strategy: Strategy) -> Strategy:
    """Return a new instance with the same hyper-parameters and without other attributes."""
    return replace(strategy) if is_dataclass(strategy) else deepcopy(strategy)


def find_not_finite(values: Mapping[str, object]) -> str | None:
    """Return the name of the first value that contains a number that is not finite."""
    for name, value in values.items():
        table = TensorTable()
        tree = pack(value, table.put)
        try:
            json.dumps(tree, allow_nan=False)
        except ValueError:
            return name
        if not all(bool(tensor.isfinite().all()) for tensor in table.tensors):
            return name
    return None


def saved_fields(state: Any) -> dict[str, object]:
    """Return the fields of a state by name, without those that `init` provides."""
    values = {f.name: getattr(state, f.name) for f in fields(state)}
    return {name: value for name, value in values.items() if not callable(value) and not isinstance(value, Layout)}
