"""PyTorch's global state: its random generators, and the private functions that tell what autograd is doing.

Layers such as dropout draw from global generators. Inside a job these are seeded from the job's key and restored
afterwards, so no job depends on another. Other threads wait meanwhile: two threads would draw each other's numbers, and
torch can deadlock if two threads ask for the state of a generator.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

_lock = threading.RLock()


@contextmanager
def exclusive_generators() -> Iterator[None]:
    """Give the current thread exclusive use of the global generators."""
    with _lock:
        yield


def _renew_lock() -> None:
    """Replace the lock in a forked process, in which the thread that held it does not exist."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def device_generators(device: torch.device) -> list[torch.Generator]:
    """Return the global generators that layers on this device draw from."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators


def get_states(generators: Sequence[torch.Generator]) -> list[Tensor]:
    return [g.get_state() for g in generators]


def set_states(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    for g, state in zip(generators, states, strict=True):
        g.set_state(state)


@contextmanager
def seeded(generators: Sequence[torch.Generator], seed: int) -> Iterator[None]:
    """Seed the generators inside the context and restore them afterwards."""
    if len(generators) > 1 and torch.cuda.is_current_stream_capturing():
        yield  # generators cannot be set during the capture of a graph, which draws no random numbers
        return
    with exclusive_generators():
        # torch.manual_seed would also reseed all other devices
        states = get_states(generators)
        for g in generators:
            g.manual_seed(seed)
        try:
            yield
        finally:
            set_states(generators, states)


def in_backward_pass() -> bool:
    """Return whether autograd is computing gradients in this thread."""
    return torch._C._current_graph_task_id() != -1


# (data, requires_grad, hooks) -> a parameter; the function that pickles of parameters call
rebuild_parameter = torch._utils._rebuild_parameter


def tensor_version(tensor: Tensor) -> int:
    """Return the number of in-place changes of a tensor."""
    return tensor._version


def functorch_active() -> bool:
    """Return whether a transformation such as vmap or grad is active."""
    return torch._C._are_functorch_transforms_active()


def autograd_observed(params: Sequence[nn.Parameter]) -> bool:
    """Return whether hooks, anomaly detection or autocast observe or change autograd's work on these parameters."""
    hooked = _has_any_global_hook() or any(p._backward_hooks for p in params)  # type: ignore[no-untyped-call]
    return hooked or torch.is_anomaly_enabled() or torch.is_autocast_enabled("cpu")
