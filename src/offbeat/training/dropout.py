"""Dropout whose masks are a function of the job's key, the step and the place in the model.

Which entries are dropped is a hash of numbers every worker knows, computed with whole numbers only: the same on every
device, for one client or for a stack of them, and for every evaluation of one batch. nn.Dropout and its kin for whole
channels are served; whatever else draws random numbers takes torch's global generators, and cannot be stacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError

CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # these drop whole channels
SERVED = (nn.Dropout, *CHANNELS)
_STEP, _PLACE = -7046029254386353131, -4658895280553007687  # odd: multiples of them do not meet for a long time
_CALL = -3335678366873096957
_MIX = (-4658895280553007687, -7723592293110705685)  # of splitmix64


class Masks:
    """`key` is the noise of this step: a whole number, or under vmap one for each client of a stack."""

    def __init__(self, module: nn.Module) -> None:
        self._sites = [m for m in module.modules() if type(m) in SERVED]  # a subclass may do something else
        self._key = torch.zeros((), dtype=torch.int64)
        self._calls = [0] * len(self._sites)

    def __bool__(self) -> bool:
        """Is there anything to drop?"""
        return bool(self._sites)

    def turn(self, key: Tensor) -> None:
        """The next evaluation begins, with the noise of this step."""
        self._key, self._calls = key, [0] * len(self._sites)

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Within, the module's dropouts take their masks from here."""
        for number, site in enumerate(self._sites):
            site.forward = partial(self._drop, number, site)
        try:
            yield
        finally:
            for site in self._sites:
                del site.forward

    def _drop(self, number: int, site: nn.Module, x: Tensor) -> Tensor:
        p = float(site.p)  # type: ignore[arg-type]
        if not site.training or p == 0:
            return x
        shape = tuple(x.shape)
        if isinstance(site, CHANNELS):
            channels = 2 if x.dim() >= (2 + CHANNELS.index(type(site)) + 1) else 1
            shape = (*shape[:channels], *(1 for _ in shape[channels:]))
        kept = uniform(self._key + noise_at(number, self._call(number)), shape) >= p
        return torch.where(kept, x, 0.0) / (1 - p) if p < 1 else x * 0.0

    def _call(self, number: int) -> int:
        """Which call of this layer it is in this evaluation. One made while gradients flow back repeats an earlier one
        (activation checkpointing), and must drop the same."""
        calls = self._calls[number]
        if torch._C._current_graph_task_id() == -1:
            self._calls[number] = calls + 1
            return calls
        if calls != 1:
            raise ConfigError(
                f"a dropout layer is called {calls} times in a model that recomputes activations: "
                "which call is repeated cannot be told; use a layer for each"
            )
        return 0


def noise_at(site: int, call: int) -> int:
    """What is added to a step's noise at this dropout layer, the so-manyth of the model, in its so-manyth call."""
    return _wrapped((site + 1) * _PLACE + call * _CALL)


def step_keys(noise: Tensor, steps: Tensor | int) -> Tensor:
    """The noise of one step of a job with that noise; or of many jobs, each at its own step."""
    return noise + (steps * _STEP if isinstance(steps, Tensor) else _wrapped(steps * _STEP))


def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1), each a hash of the key and its place; of 24 bits, so that float32 holds them."""
    # the key is mixed first: otherwise the numbers of the next step would be those of this one, moved by one place
    z = _mixed(torch.arange(prod(shape), device=key.device) * _STEP + _mixed(key))
    return ((z >> 40 & 0xFFFFFF).to(torch.float32) / 2**24).view(shape)


def _wrapped(number: int) -> int:
    """As 64 bits with a sign, which is how tensors multiply."""
    return (number + 2**63) % 2**64 - 2**63


def _mixed(z: Tensor) -> Tensor:
    """splitmix64; >> keeps the sign, so what it moves in is masked away."""
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * _MIX[0]
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * _MIX[1]
    return z ^ (z >> 31 & 0x1FFFFFFFF)
