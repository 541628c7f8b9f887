"""Dropout and image augmentation that depend only on the job's key, and dropout on the step and the layer, too.

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

from offbeat.core.errors import ConfigError, DataError
from offbeat.training.client_data import ClientData
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


MAX_SHIFT = 4  # pixels in each direction


class CropFlip:
    """Image augmentation: shift by up to four pixels, padding with black, and mirror half of the images.

    The shifts of a whole epoch are drawn from the job's key before anything is computed. So a job gives the same bits
    on every worker, independent of the number of batches that are gathered at once.
    """

    def __init__(self, data: ClientData) -> None:
        if len(data.input_shape) != 3:
            needs = "training.augment = 'crop-flip' needs images (channels, height, width)"
            raise DataError(f"{needs}, but the inputs have shape {data.input_shape}: leave training.augment out")
        self.black = data.channel_minima()[:, None, None]  # 0 in byte images, its value after standardization in others

    def draw(self, images: int, generator: torch.Generator) -> Tensor:
        """Draw for each image the rows and columns to shift by, and whether to mirror: shape (images, 3)."""
        shifts = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (images, 2), generator=generator)
        return torch.cat([shifts, torch.randint(0, 2, (images, 1), generator=generator)], dim=1)

    def __call__(self, x: Tensor, moves: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        down, right, mirrored = moves.to(x.device).unbind(1)
        # (n, height) and (n, width): source row and column of each pixel
        rows = torch.arange(height, device=x.device) + down[:, None]
        unmirrored = torch.arange(width, device=x.device)
        columns = torch.where(mirrored[:, None] == 1, unmirrored.flip(0), unmirrored) + right[:, None]
        rows_inside, columns_inside = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
        inside = rows_inside[:, None, :, None] & columns_inside[:, None, None, :]
        moved = x.gather(2, rows.clamp(0, height - 1)[:, None, :, None].expand(n, channels, height, width))
        moved = moved.gather(3, columns.clamp(0, width - 1)[:, None, None, :].expand(n, channels, height, width))
        return torch.where(inside, moved, self.black.to(x.device))
