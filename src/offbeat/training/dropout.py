"""Dropout that depends only on the job's key, the step and the layer.

A mask is a hash, computed with integers. So it is the same on every device, for one client or a stack of clients, and
for every evaluation of one batch. nn.Dropout, its variants for whole channels, `F.dropout` and the dropout of attention
are supported. Other random layers use torch's global generators and cannot be stacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from offbeat.core.draws import hashed_uniform, site_noise
from offbeat.core.errors import ConfigError
from offbeat.training.torch_state import in_backward_pass

CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
SUPPORTED = (nn.Dropout, *CHANNEL_DROPOUTS)


class DropoutMasks:
    """The dropout masks of a module.

    The key of a step is an integer, or under vmap one integer for each client of a stack.
    """

    def __init__(self, module: nn.Module) -> None:
        self._sites = [m for m in module.modules() if type(m) in SUPPORTED]  # not subclasses, which may differ
        self._key = torch.zeros((), dtype=torch.int64)
        self._calls = [0] * (len(self._sites) + 1)  # the last entry counts calls of functions

    def __bool__(self) -> bool:
        """Return whether the module has dropout layers."""
        return bool(self._sites)

    def set_key(self, key: Tensor) -> None:
        """Start the next evaluation, with the key of this step."""
        self._key, self._calls = key, [0] * (len(self._sites) + 1)

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
        """Replace the forward method of a dropout layer."""
        if not site.training:
            return x
        shape = tuple(x.shape)
        if isinstance(site, CHANNEL_DROPOUTS):
            channels = 2 if x.dim() >= (2 + CHANNEL_DROPOUTS.index(type(site)) + 1) else 1
            shape = (*shape[:channels], *(1 for _ in shape[channels:]))
        return self._apply_mask(number, x, float(site.p), shape)  # type: ignore[arg-type]

    def drop_entries(self, x: Tensor, p: float) -> Tensor:
        """Drop entries for a call of a function such as `F.dropout`, which belongs to no layer."""
        return self._apply_mask(len(self._sites), x, p, tuple(x.shape))

    def _apply_mask(self, number: int, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        """Drop entries with probability p and scale the others; `number` is the layer."""
        if p == 0:
            return x
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
