"""Which examples make up each step: reshuffled epochs, cut into batches.

The order is a function of the generator alone, so every worker that asks for it takes the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def needs_two(module: nn.Module) -> bool:
    """Batch statistics of one example are no statistics."""
    return any(isinstance(m, _BATCH_NORMS) for m in module.modules())


def merges(examples: int, batch: int) -> bool:
    """Would the last batch of an epoch be of one example, with another before it?"""
    return examples > batch and examples % batch == 1


def count(examples: int, batch: int, merge: bool) -> int:
    """How many batches make up an epoch."""
    return -(-examples // batch) - (merge and merges(examples, batch))


def sizes(examples: int, batch: int, merge: bool) -> list[int]:
    """The batch sizes of one epoch; `merge` puts a last batch of one into the one before."""
    full = count(examples, batch, merge) - 1
    return [batch] * full + [examples - full * batch]


def epochs(
    examples: int, batch: int, merge: bool, steps: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, list[int]]]:
    """(order, batch sizes) epoch by epoch, until they make `steps` batches; the last epoch may be cut short."""
    whole = sizes(examples, batch, merge)
    while steps > 0:
        used = whole[:steps]
        steps -= len(used)
        yield torch.randperm(examples, generator=generator)[: sum(used)], used
