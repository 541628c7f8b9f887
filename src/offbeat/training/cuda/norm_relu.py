"""Find norms in a traced model that are followed by an addition and a ReLU, so they can be fused.

Fused they take one pass over memory if the device has a kernel for it (`training/cuda/norm_triton.py`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F


class FusedNorm(NamedTuple):
    """A norm with the operations after it, computed at the position of the last one."""

    norm: fx.Node
    added: fx.Node | None


def find_fused_norms(
    module: nn.Module, nodes: Sequence[fx.Node], norms: Collection[type[nn.Module]]
) -> dict[str, FusedNorm | None]:
    """Return node name -> the fused norm to compute there, or None if a later node computes it."""
    fused: dict[str, FusedNorm | None] = {}
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
        if last is None or last.name in fused or not _is_relu(module, last):
            continue
        if added is not None:
            fused[between.name] = None
        fused[norm.name], fused[last.name] = None, FusedNorm(norm, added)
    return fused


def _only_user(node: fx.Node) -> fx.Node | None:
    """Return the only user of a value, or None."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(module: nn.Module, node: fx.Node) -> bool:
    """Return whether a node is a ReLU."""
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))) is nn.ReLU
    return node.target in (F.relu, torch.relu) or (node.op == "call_method" and node.target == "relu")
