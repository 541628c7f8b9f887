"""BatchNorm of a stack with padded batches: padding does not affect the statistics.

Equal to torch's BatchNorm in training mode, including running statistics and gradients; the tests compare both. On a
GPU, images use one kernel (`training/cuda/norm_triton.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.training.stacked.convolution import has_kernels
from offbeat.training.torch_state import GradientContext

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class BatchMask:
    """The batch sizes of one step of a stack, and the running statistics of each client by name."""

    def __init__(self, sizes: Tensor, width: int, statistics: Mapping[str, Tensor]) -> None:
        self._sizes, self._width, self.statistics = sizes, width, dict(statistics)

    @cached_property
    def sizes(self) -> Tensor:
        """The batch sizes, (clients, 1); finished clients count as 1 to avoid dividing by zero."""
        return self._sizes.clamp(min=1)

    @cached_property
    def counts(self) -> Tensor:
        """A mask (clients, width) that is true for examples and false for padding."""
        return torch.arange(self._width, device=self._sizes.device) < self.sizes


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    name: str,
    layer: Any,
    batch: BatchMask,
    added: Tensor | None = None,
    cut: bool = False,
) -> Tensor:
    """Normalize x (clients, examples, channels, …) with weight and bias (clients, channels).

    Optionally adds a tensor to the result and applies ReLU.
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
        out, mean, variance = _Normalize.apply(flat, weight, bias, *of)  # type: ignore[no-untyped-call]
        out = out.view(last.shape).movedim(-1, 2)
        out = out if added is None else out + added
        out = out.relu() if cut else out
    if layer.track_running_stats:
        unbiased = variance * (number / (number - 1).clamp(min=1))
        _update_statistics(f"{name}." if name else "", layer, batch.statistics, mean, unbiased)
    normal: Tensor = out
    return normal


def _update_statistics(prefix: str, layer: Any, statistics: dict[str, Tensor], mean: Tensor, variance: Tensor) -> None:
    """Update running statistics with momentum, or with the cumulative average if momentum is None."""
    statistics[f"{prefix}num_batches_tracked"] = seen = statistics[f"{prefix}num_batches_tracked"] + 1
    share = 1 / seen[:, None].to(mean.dtype) if layer.momentum is None else layer.momentum
    for key, value in ((f"{prefix}running_mean", mean), (f"{prefix}running_var", variance)):
        statistics[key] = statistics[key] * (1 - share) + value * share


class _Normalize(torch.autograd.Function):
    """Normalize x (clients, examples, positions, channels) with padding; also return means and variances."""

    @staticmethod
    def forward(
        ctx: GradientContext,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        counts: Tensor,
        number: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the result."""
        share = counts / number
        mean = _mean_dimensions(x * share)
        apart = x - mean
        variance = _mean_dimensions(apart * apart * share)
        scale = torch.rsqrt(variance + eps)
        slope = scale if weight is None else scale * weight[:, None, None]
        out = apart.mul_(slope) if bias is None else torch.addcmul(bias[:, None, None], apart, slope)
        ctx.save_for_backward(x, mean, scale, slope, counts, number)
        ctx.has = weight is not None, bias is not None
        moments = mean[:, 0, 0], variance[:, 0, 0]
        ctx.mark_non_differentiable(*moments)
        ctx.set_materialize_grads(False)
        return out, *moments

    @staticmethod
    def backward(ctx: GradientContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs."""
        x, mean, scale, slope, counts, number = ctx.saved_tensors
        grad, (has_weight, has_bias) = grads[0], ctx.has
        normal = (x - mean).mul_(scale)
        shift, along = _mean_dimensions(grad), _mean_dimensions(grad * normal)
        through = torch.addcmul(shift / number, normal, along / number).mul_(counts)
        of_x = (grad - through).mul_(slope)
        of_weight, of_bias = along[:, 0, 0] if has_weight else None, shift[:, 0, 0] if has_bias else None
        return of_x, of_weight, of_bias, None, None, None


def _mean_dimensions(values: Tensor) -> Tensor:
    """Sum over examples and positions."""
    return values.sum((1, 2), keepdim=True)
