"""Fast 2x2 pooling on a CPU, with the results of torch.

torch iterates over the windows, which takes about as long as the convolutions around them. This module compares or
adds the four pixels of all windows as four strided views. Values, ties (the first of equal maxima gets the gradient)
and the order of sums equal torch's. The sign of zeros may differ, and the pixel that gets the gradient of a nan.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.training.torch_state import functorch_active

MIN_ENTRIES = 2**16  # for smaller inputs the overhead of the operations is larger than the gain


def use_fast_pooling(module: nn.Module) -> nn.Module:
    """Replace `forward` of the pooling layers of a module, and return the module; its state does not change."""
    for layer in module.modules():
        if "forward" not in vars(layer):  # keep a forward that the user replaced
            if type(layer) is nn.MaxPool2d:
                layer.forward = partial(max_pool, layer)  # type: ignore[method-assign]
            elif type(layer) is nn.AvgPool2d:
                layer.forward = partial(avg_pool, layer)  # type: ignore[method-assign]
    return module


def max_pool(layer: nn.MaxPool2d, input: Tensor) -> Any:  # torch's argument name
    if not _applies(layer, input) or layer.dilation not in (1, (1, 1)) or layer.return_indices:
        return nn.MaxPool2d.forward(layer, input)
    if input.requires_grad and torch.is_grad_enabled():
        return _MaxPool2x2.apply(input)  # type: ignore[no-untyped-call]
    rows = torch.maximum(input[..., ::2, :], input[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def avg_pool(layer: nn.AvgPool2d, input: Tensor) -> Tensor:
    if not _applies(layer, input) or layer.divisor_override is not None:
        return nn.AvgPool2d.forward(layer, input)
    out: Tensor = _AvgPool2x2.apply(input)  # type: ignore[no-untyped-call]
    return out


def _applies(layer: nn.MaxPool2d | nn.AvgPool2d, x: Tensor) -> bool:
    """Return whether the fast path handles this layer and input.

    Half precision is left to torch, which sums it in single precision.
    """
    two = all(size in (2, (2, 2)) for size in (layer.kernel_size, layer.stride))
    if not two or layer.padding not in (0, (0, 0)) or layer.ceil_mode or functorch_active():
        return False
    supported = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.is_contiguous()
    return supported and x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and x.numel() >= MIN_ENTRIES


def _pixels(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]


class _MaxPool2x2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b, c, d = _pixels(x)
        top, low = torch.maximum(a, b), torch.maximum(c, d)
        above, below, lower = (
            b > a,
            d > c,
            low > top,
        )  # is the maximum right in the upper row, right in the lower row, in the lower row
        right = (above ^ below).logical_and_(lower).logical_xor_(above)
        height, width = x.shape[2:]
        rows, columns = (torch.arange(0, side, 2, device=x.device) for side in (height, width))
        # torch's gradient needs the position of each maximum in its image
        ctx.save_for_backward(x, (rows[:, None] * width + columns + right).add_(lower, alpha=width))
        return torch.maximum(top, low, out=top)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, positions = ctx.saved_tensors
        windows = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        out: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(grads[0], x, *windows, positions)
        return out


class _AvgPool2x2(torch.autograd.Function):
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
