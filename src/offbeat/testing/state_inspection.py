"""Saved and loaded, copied afresh, equal to the last bit: what the laws compare with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from offbeat.core.protocol import Strategy, World
from offbeat.core.snapshot import TensorTable, pack_state, unpack_state


def reload_state(strategy: Strategy, state: Any, world: World) -> Any:
    """The state as a checkpoint would bring it back: text and copied tensors, filled into a fresh `init(world)`."""
    table = TensorTable()
    text = json.dumps(pack_state(state, table.put))
    copies = [tensor.clone() for tensor in table.tensors]
    return unpack_state(strategy.init(world), json.loads(text), copies.__getitem__)


def identical(a: Any, b: Any) -> bool:
    """Equal to the last bit, through dataclasses, mappings and sequences."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if is_dataclass(a) and not isinstance(a, type):
        return all(identical(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


def copy_strategy(strategy: Any) -> Any:
    """A new instance with the same hyper-parameters: whatever else was kept on the old one is gone."""
    return replace(strategy) if is_dataclass(strategy) and not isinstance(strategy, type) else deepcopy(strategy)
