"""Dropout whose masks depend only on the job's key, the step and the layer.

A mask is a hash, computed with integers. So it is the same on every device, for one client or a stack of clients, and
for every evaluation of one batch. nn.Dropout and its variants for whole channels are supported. Other random layers use
torch's global generators and cannot be stacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError
from offbeat.training.torch_state import in_backward_pass

CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
SUPPORTED = (nn.Dropout, *CHANNEL_DROPOUTS)
_STEP, _SITE = -7046029254386353131, -4658895280553007687  # odd, so that their multiples rarely coincide
_CALL = -3335678366873096957
_MIX = (-4658895280553007687, -7723592293110705685)  # the multipliers of splitmix64


class DropoutMasks:
    """The dropout masks of a module.

    The key of a step is an integer, or under vmap one integer for each client of a stack.
    """

    def __init__(self, module: nn.Module) -> None:
        self._sites = [m for m in module.modules() if type(m) in SUPPORTED]  # not subclasses, which may differ
        self._key = torch.zeros((), dtype=torch.int64)
        self._calls = [0] * len(self._sites)

    def __bool__(self) -> bool:
        """Return whether the module has dropout layers."""
        return bool(self._sites)

    def set_key(self, key: Tensor) -> None:
        """Start the next evaluation, with the key of this step."""
        self._key, self._calls = key, [0] * len(self._sites)

    @contextmanager
    def install(self) -> Iterator[None]:
        """Make the dropout layers of the module use these masks inside the context."""
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
        if isinstance(site, CHANNEL_DROPOUTS):
            channels = 2 if x.dim() >= (2 + CHANNEL_DROPOUTS.index(type(site)) + 1) else 1
            shape = (*shape[:channels], *(1 for _ in shape[channels:]))
        mask = hashed_uniform(self._key + site_noise(number, self._call(number)), shape) >= p
        return torch.where(mask, x, 0.0) / (1 - p) if p < 1 else x * 0.0

    def _call(self, number: int) -> int:
        """Return the number of this call of a layer in the current evaluation.

        A call during the backward pass (activation checkpointing) repeats the earlier call and gets its number.
        """
        calls = self._calls[number]
        if not in_backward_pass():
            self._calls[number] = calls + 1
            return calls
        if calls != 1:
            raise ConfigError(
                f"a dropout layer is called {calls} times in a model that recomputes activations: "
                "the repeated call is ambiguous; use a separate layer for each call"
            )
        return 0


def site_noise(site: int, call: int) -> int:
    """Return the number added to the key of a step for this dropout layer and this call of it."""
    return _to_int64((site + 1) * _SITE + call * _CALL)


def step_keys(noise: Tensor, steps: Tensor | int) -> Tensor:
    """Return the key of a step for the noise seed of a job, or of each of many jobs."""
    return noise + (steps * _STEP if isinstance(steps, Tensor) else _to_int64(steps * _STEP))


def hashed_uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return numbers in [0, 1), each a hash of the key and its position; 24 bits, which are exact in float32."""
    # mix the key first: otherwise the numbers of the next step would be the same ones, shifted by one position
    z = _splitmix64(torch.arange(prod(shape), device=key.device) * _STEP + _splitmix64(key))
    return ((z >> 40 & 0xFFFFFF).to(torch.float32) / 2**24).view(shape)


def _to_int64(number: int) -> int:
    """Wrap an integer to signed 64 bits, the range of tensor arithmetic."""
    return (number + 2**63) % 2**64 - 2**63


def _splitmix64(z: Tensor) -> Tensor:
    """Mix the bits of int64 values with splitmix64; the masks remove the sign bits that >> shifts in."""
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * _MIX[0]
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * _MIX[1]
    return z ^ (z >> 31 & 0x1FFFFFFFF)
