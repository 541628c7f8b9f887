"""Norms of a traced model with what follows each: something is added, and what is then below zero cut off. Computed
together they are one pass over memory, where a device has a kernel for it (`training/cuda/norm_triton.py`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F


class Followed(NamedTuple):
    """Computed where the last of it stands."""

    norm: fx.Node
    added: fx.Node | None


def followed(
    module: nn.Module, nodes: Sequence[fx.Node], norms: Collection[type[nn.Module]]
) -> dict[str, Followed | None]:
    """By the name of a node: what to compute there; None: nothing, it comes later."""
    found: dict[str, Followed | None] = {}
    times = Counter(node.target for node in nodes if node.op == "call_module")
    for norm in nodes:
        if norm.op != "call_module" or type(module.get_submodule(str(norm.target))) not in norms:
            continue
        if times[norm.target] > 1:
            continue  # its running statistics move call by call, in the order of the calls
        last, added = _only_user(norm), None
        if last is not None and last.target in (operator.add, torch.add) and len(last.all_input_nodes) == 2:
            (added,) = (node for node in last.all_input_nodes if node is not norm)
            between, last = last, _only_user(last)
        if last is None or last.name in found or not _cuts(module, last):
            continue
        if added is not None:
            found[between.name] = None
        found[norm.name], found[last.name] = None, Followed(norm, added)
    return found


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _cuts(module: nn.Module, node: fx.Node) -> bool:
    """Is it a ReLU?"""
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))) is nn.ReLU
    return node.target in (F.relu, torch.relu) or (node.op == "call_method" and node.target == "relu")
