"""Pooling of two by two pixels on a CPU: what torch computes, in a fraction of its time.

torch goes through the windows one by one, which takes a CPU about as long as the convolutions around them. Here the
first, second, third and fourth pixels of all windows are four pictures that are compared, or added, entry by entry.
Values, ties (the first of equal largest pixels gets the gradient) and the order of sums are torch's; of zeros the sign
may differ, and of nan which pixel of the window gets the gradient.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

FEW = 2**16  # entries below which calling so many operations takes longer than it saves


def quick(module: nn.Module) -> nn.Module:
    """The module itself, its poolings taught this; what it is and what it saves stay as they are."""
    for layer in module.modules():
        if "forward" not in vars(layer):  # nobody's own
            if type(layer) is nn.MaxPool2d:
                layer.forward = partial(largest, layer)  # type: ignore[method-assign]
            elif type(layer) is nn.AvgPool2d:
                layer.forward = partial(means, layer)  # type: ignore[method-assign]
    return module


def largest(layer: nn.MaxPool2d, input: Tensor) -> Any:  # named as torch names it
    if not _worth(layer, input) or layer.dilation not in (1, (1, 1)) or layer.return_indices:
        return nn.MaxPool2d.forward(layer, input)
    if input.requires_grad and torch.is_grad_enabled():
        return _Largest.apply(input)  # type: ignore[no-untyped-call]
    rows = torch.maximum(input[..., ::2, :], input[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def means(layer: nn.AvgPool2d, input: Tensor) -> Tensor:
    if not _worth(layer, input) or layer.divisor_override is not None:
        return nn.AvgPool2d.forward(layer, input)
    out: Tensor = _Means.apply(input)  # type: ignore[no-untyped-call]
    return out


def _worth(layer: nn.MaxPool2d | nn.AvgPool2d, x: Tensor) -> bool:
    """Many plain pictures of even sides on a CPU, in windows of two by two; half precision is summed in single by
    torch, and under vmap and its like all is left to torch.
    """
    two = all(given in (2, (2, 2)) for given in (layer.kernel_size, layer.stride))
    if not two or layer.padding not in (0, (0, 0)) or layer.ceil_mode or torch._C._are_functorch_transforms_active():
        return False
    plain = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.is_contiguous()
    return plain and x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and x.numel() >= FEW


def _pixels(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b, c, d = _pixels(x)
        top, low = torch.maximum(a, b), torch.maximum(c, d)
        above, below, lower = b > a, d > c, low > top  # is it the right one of the upper, of the lower; a lower one
        right = (above ^ below).logical_and_(lower).logical_xor_(above)
        height, width = x.shape[2:]
        rows, columns = (torch.arange(0, side, 2, device=x.device) for side in (height, width))
        # where in its picture it is, which is what torch's own gradient wants to know
        ctx.save_for_backward(x, (rows[:, None] * width + columns + right).add_(lower, alpha=width))
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
        a, b, c, d = _pixels(x)
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
