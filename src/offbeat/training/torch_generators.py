"""torch's global generators, lent to one computation at a time and given back as they were.

Layers such as dropout draw from global state. Within a job that state is set from the job's key, so nothing leaks in;
afterwards it is what it was before, so nothing leaks out. Other threads wait meanwhile: two would draw each other's
numbers (and torch may stop for ever where two ask for a generator's state at once).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_lent = threading.RLock()


@contextmanager
def drawing() -> Iterator[None]:
    """Whoever sets the global generators, to train or to make a model, has them alone meanwhile."""
    with _lent:
        yield


def _forked() -> None:
    """In a fork: whichever thread had them is not there."""
    global _lent
    _lent = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def generators(device: torch.device) -> list[torch.Generator]:
    """The global generators that layers on this device draw from."""
    found = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        found.append(torch.cuda.default_generators[index])
    return found


def states(sources: Sequence[torch.Generator]) -> list[Tensor]:
    return [g.get_state() for g in sources]


def restore(sources: Sequence[torch.Generator], saved: Sequence[Tensor]) -> None:
    for g, state in zip(sources, saved, strict=True):
        g.set_state(state)


@contextmanager
def seeded(sources: Sequence[torch.Generator], seed: int) -> Iterator[None]:
    if len(sources) > 1 and torch.cuda.is_current_stream_capturing():
        yield  # what is recorded draws nothing: its generators cannot be set meanwhile
        return
    with drawing():
        # torch.manual_seed would also reseed every other device: only these generators are touched
        saved = states(sources)
        for g in sources:
            g.manual_seed(seed)
        try:
            yield
        finally:
            restore(sources, saved)
