"""Pooling of two by two pixels on a CPU: torch's bits in a fraction of its time.

torch goes through the windows one by one, which takes a CPU about as long as the convolutions around them. Here a
picture is four of half its sides (the windows' first, second, third and fourth pixels) which are compared or added
entry by entry. Values, ties (the first of equal largest pixels gets the gradient) and the order of sums are torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

FEW = 2**16  # entries below which calling so many operations takes longer than it saves


def quick(module: nn.Module) -> nn.Module:
    """The module itself, its poolings replaced where they are of two by two pixels; what it saves is as before."""
    for layer in module.modules():
        if type(layer) is nn.MaxPool2d and _by_two(layer):
            if layer.dilation in (1, (1, 1)) and not layer.return_indices:
                layer.forward = largest  # type: ignore[method-assign]
        elif type(layer) is nn.AvgPool2d and _by_two(layer) and layer.divisor_override is None:
            layer.forward = means  # type: ignore[method-assign]
    return module


def _by_two(layer: nn.MaxPool2d | nn.AvgPool2d) -> bool:
    sides = all(given in (2, (2, 2)) for given in (layer.kernel_size, layer.stride))
    return sides and layer.padding in (0, (0, 0)) and not layer.ceil_mode


def largest(input: Tensor) -> Tensor:  # named as torch names it
    if not _worth(input):
        return max_pool2d(input, 2)
    if input.requires_grad and torch.is_grad_enabled():
        out: Tensor = _Largest.apply(input)  # type: ignore[no-untyped-call]
        return out
    rows = torch.maximum(input[..., ::2, :], input[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def means(input: Tensor) -> Tensor:
    if not _worth(input):
        return avg_pool2d(input, 2)
    out: Tensor = _Means.apply(input)  # type: ignore[no-untyped-call]
    return out


def _worth(x: Tensor) -> bool:
    """Plain pictures of even sides on a CPU, many enough. Half precision is summed in single by torch."""
    plain = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.is_contiguous()
    return plain and x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and x.numel() >= FEW


def _corners(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b, c, d = _corners(x)
        top, low = torch.maximum(a, b), torch.maximum(c, d)
        above, below, lower = b > a, d > c, low > top  # is it the right one of the upper, of the lower; a lower one
        right = (above ^ below).logical_and_(lower).logical_xor_(above)
        height, width = x.shape[2:]
        first = torch.arange(0, height, 2)[:, None] * width + torch.arange(0, width, 2)
        ctx.save_for_backward(x, (first + right).add_(lower, alpha=width))  # where in its picture it is
        return torch.maximum(top, low, out=top)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, places = ctx.saved_tensors
        windows = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        out: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(grads[0], x, *windows, places)
        return out


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b, c, d = _corners(x)
        return (a + b).add_(c).add_(d).mul_(0.25)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        each = grads[0] * 0.25
        examples, channels, high, wide = each.shape
        rows = each.new_empty((examples, channels, high, 2, 2 * wide))
        upper = rows[:, :, :, 0]
        upper[..., ::2] = each
        upper[..., 1::2] = each
        rows[:, :, :, 1] = upper
        return rows.view(examples, channels, 2 * high, 2 * wide)
