"""Fast 2x2 pooling on a CPU, with the results of torch.

torch iterates over the windows, which takes about as long as the convolutions around them. This module compares or
adds the four pixels of all windows as four strided views. Values, ties (the first of equal maxima gets the gradient)
and the order of sums equal torch's. The sign of zeros may differ, and the pixel that gets the gradient of a nan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from offbeat.training.torch_state import GradientContext, functorch_active

Sides = int | list[int] | tuple[int, ...]

MIN_ENTRIES = 2**16  # for smaller inputs the overhead of the operations is larger than the gain


def max_pool2d(
    x: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    dilation: Sides = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Replace `torch.max_pool2d` and `F.max_pool2d`."""
    plain = _side(dilation) == 1 and not return_indices
    if not plain or not _applies(x, kernel_size, stride, padding, ceil_mode):
        pool: Any = F.max_pool2d
        return pool(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    if x.requires_grad and torch.is_grad_enabled():
        return _MaxPool2x2.apply(x)  # type: ignore[no-untyped-call]
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def avg_pool2d(
    x: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Replace `F.avg_pool2d`."""
    if divisor_override is not None or not _applies(x, kernel_size, stride, padding, ceil_mode):
        return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    out: Tensor = _AvgPool2x2.apply(x)  # type: ignore[no-untyped-call]
    return out


def _side(sides: Sides | None) -> int | None:
    """Return the common value of both sides, or None."""
    values = (sides,) if isinstance(sides, int) else tuple(sides or ())
    return values[0] if len(set(values)) == 1 else None


def _applies(x: Tensor, kernel_size: Sides, stride: Sides | None, padding: Sides, ceil_mode: bool) -> bool:
    """Return whether the fast path handles these windows and this input.

    Half precision is left to torch, which sums it in single precision.
    """
    two = _side(kernel_size) == 2 and (not stride or _side(stride) == 2) and _side(padding) == 0
    if not two or ceil_mode or functorch_active():
        return False
    supported = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.is_contiguous()
    return supported and x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and x.numel() >= MIN_ENTRIES


def _pixels(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four pixels of all windows as views."""
    return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]


class _MaxPool2x2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: GradientContext, x: Tensor) -> Tensor:
        """Compute the result."""
        a, b, c, d = _pixels(x)
        top, low = torch.maximum(a, b), torch.maximum(c, d)
        # whether the maximum is right in the upper row, right in the lower row, in the lower row
        above, below, lower = b > a, d > c, low > top
        right = (above ^ below).logical_and_(lower).logical_xor_(above)
        height, width = x.shape[2:]
        rows, columns = (torch.arange(0, side, 2, device=x.device) for side in (height, width))
        # torch's gradient needs the position of each maximum in its image
        ctx.save_for_backward(x, (rows[:, None] * width + columns + right).add_(lower, alpha=width))
        return torch.maximum(top, low, out=top)

    @staticmethod
    def backward(ctx: GradientContext, *grads: Tensor) -> Tensor:
        """Compute the gradients of the inputs."""
        x, positions = ctx.saved_tensors
        windows = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        out: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(grads[0], x, *windows, positions)
        return out


class _AvgPool2x2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: GradientContext, x: Tensor) -> Tensor:
        """Compute the result."""
        a, b, c, d = _pixels(x)
        return (a + b).add_(c).add_(d).mul_(0.25)

    @staticmethod
    def backward(ctx: GradientContext, *grads: Tensor) -> Tensor:
        """Compute the gradients of the inputs."""
        each = grads[0] * 0.25
        examples, channels, high, wide = each.shape
        rows = each.new_empty((examples, channels, high, 2, 2 * wide))
        upper = rows[:, :, :, 0]
        upper[..., ::2] = each
        upper[..., 1::2] = each
        rows[:, :, :, 1] = upper
        return rows.view(examples, channels, 2 * high, 2 * wide)
