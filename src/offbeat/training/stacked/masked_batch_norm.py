"""BatchNorm of a stack in which batches are filled up: what fills a batch up has no part in its statistics.

As torch has it while a model trains: an example is seen by the mean and the deviation of its batch, the running
statistics move towards them (the variance without bias), and the gradient goes through both. For any device; compared
with torch's own by tests/client/test_device.py. Of pictures on a GPU it is one kernel (`training/cuda/norm_triton.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.training.stacked.convolution import has_kernels

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Batch:
    """The batches of one step of a stack, and each client's running statistics, by name, which move as it is passed."""

    def __init__(self, sizes: Tensor, width: int, statistics: Mapping[str, Tensor]) -> None:
        self._sizes, self._width, self.statistics = sizes, width, dict(statistics)

    @cached_property
    def sizes(self) -> Tensor:
        """(clients, 1); one for who is done: of nothing there would be no mean, and no end to what follows from it."""
        return self._sizes.clamp(min=1)

    @cached_property
    def counts(self) -> Tensor:
        """(clients, width): is this place of the batch one of its examples?"""
        return torch.arange(self._width, device=self._sizes.device) < self.sizes


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    name: str,
    layer: Any,
    batch: Batch,
    added: Tensor | None = None,
    cut: bool = False,
) -> Tensor:
    """x (clients, examples, channels, …), weight and bias (clients, channels). Something may be added to what comes
    out, and what is then below zero cut off.
    """
    last = x.movedim(2, -1)  # as convolutions of stacks have it in memory
    number = (batch.sizes * prod(last.shape[2:-1])).to(x.dtype)  # (clients, 1): of values a channel
    pictures = x.dim() == 5 and x.dtype == torch.float32 and weight is not None and bias is not None
    if pictures and (added is None or added.shape == x.shape) and has_kernels(x.device.type):
        from offbeat.training.cuda.norm_triton import BatchNorm

        also = None if added is None else added.movedim(2, -1)
        ways = (also, cut, batch.sizes, layer.eps)
        out, mean, variance = BatchNorm.apply(last, weight, bias, *ways)  # type: ignore[no-untyped-call]
        out = out.movedim(-1, 2)
    else:
        flat = last.reshape(*x.shape[:2], -1, x.shape[2])  # (clients, examples, places, channels)
        counts = batch.counts[:, :, None, None].to(x.dtype)
        of = (counts, number[:, :, None, None], layer.eps)
        out, mean, variance = _Normal.apply(flat, weight, bias, *of)  # type: ignore[no-untyped-call]
        out = out.view(last.shape).movedim(-1, 2)
        out = out if added is None else out + added
        out = out.relu() if cut else out
    if layer.track_running_stats:
        unbiased = variance * (number / (number - 1).clamp(min=1))
        _follow(f"{name}." if name else "", layer, batch.statistics, mean, unbiased)
    normal: Tensor = out
    return normal


def _follow(prefix: str, layer: Any, held: dict[str, Tensor], mean: Tensor, variance: Tensor) -> None:
    """Running statistics move by a share that is fixed or, without one, the same for every batch there was."""
    held[f"{prefix}num_batches_tracked"] = seen = held[f"{prefix}num_batches_tracked"] + 1
    share = 1 / seen[:, None].to(mean.dtype) if layer.momentum is None else layer.momentum
    for key, value in ((f"{prefix}running_mean", mean), (f"{prefix}running_var", variance)):
        held[key] = held[key] * (1 - share) + value * share


class _Normal(torch.autograd.Function):
    """x (clients, examples, places, channels), where not all examples count: normal, scaled and shifted by weight and
    bias (clients, channels); and mean and variance of each channel.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, counts: Tensor, number: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        share = counts / number
        mean = _over(x * share)
        apart = x - mean
        variance = _over(apart * apart * share)
        scale = torch.rsqrt(variance + eps)
        slope = scale if weight is None else scale * weight[:, None, None]
        out = apart.mul_(slope) if bias is None else torch.addcmul(bias[:, None, None], apart, slope)
        ctx.save_for_backward(x, mean, scale, slope, counts, number)
        ctx.has = weight is not None, bias is not None
        found = mean[:, 0, 0], variance[:, 0, 0]
        ctx.mark_non_differentiable(*found)
        ctx.set_materialize_grads(False)
        return out, *found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, scale, slope, counts, number = ctx.saved_tensors
        grad, (has_weight, has_bias) = grads[0], ctx.has
        normal = (x - mean).mul_(scale)
        shift, along = _over(grad), _over(grad * normal)
        through = torch.addcmul(shift / number, normal, along / number).mul_(counts)
        of_x = (grad - through).mul_(slope)
        of_weight, of_bias = along[:, 0, 0] if has_weight else None, shift[:, 0, 0] if has_bias else None
        return of_x, of_weight, of_bias, None, None, None


def _over(values: Tensor) -> Tensor:
    """Summed over examples and places."""
    return values.sum((1, 2), keepdim=True)
