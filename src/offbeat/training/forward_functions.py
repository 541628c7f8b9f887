"""The definitions of some functions of PyTorch inside a model's forward pass.

Dropout comes from the job's key, so a job gives the same result alone and in a stack. Small pooling windows on a CPU
take a fast path. In a stack, attention is computed from matrix products, and BatchNorm ignores padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from offbeat.training.dropout import DropoutMasks
from offbeat.training.pooling import avg_pool2d, max_pool2d
from offbeat.training.torch_state import ModuleOutput, call_under_mode

_CALLING_LAYERS = (nn.MaxPool2d, nn.AvgPool2d, nn.MultiheadAttention, nn.Transformer)
_BATCH_NORM_EPS = 1e-5  # torch's default, as are the other defaults of the functions below


class ForwardFunctions(TorchFunctionMode):
    """Replace functions inside the context."""

    def __init__(self, masks: DropoutMasks) -> None:
        super().__init__()
        self.masks = masks
        self._handlers: dict[Callable[..., ModuleOutput], Callable[..., ModuleOutput]] = {
            F.dropout: self._dropout,
            torch.dropout: self._torch_dropout,
            F.scaled_dot_product_attention: self._attention,
            F.multi_head_attention_forward: self._multi_head_attention,
            F.max_pool2d: self._max_pool,
            torch.max_pool2d: self._max_pool,
            F.avg_pool2d: self._avg_pool,
        }

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        handler = self._handlers.get(function)
        return (function if handler is None else handler)(*args, **(kwargs or {}))

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Replace `F.dropout`."""
        if not training or p == 0:
            return input
        out = self.masks.drop_entries(input, p)
        return input.copy_(out) if inplace else out

    def _torch_dropout(self, input: Tensor, p: float, train: bool) -> Tensor:
        """Replace `torch.dropout`."""
        return self._dropout(input, p, train)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Replace attention that has dropout."""
        if dropout_p == 0:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **kwargs)
        return self._product_attention(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)

    def _product_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Compute scaled dot product attention from matrix products, with dropout from the job's key."""
        if enable_gqa:
            key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = torch.softmax(scores, -1)
        return (self.masks.drop_entries(weights, dropout_p) if dropout_p else weights) @ value

    def _multi_head_attention(self, *args: object, **kwargs: object) -> ModuleOutput:
        """Call multi-head attention so that its dropout and attention are replaced."""
        return call_under_mode(self, F.multi_head_attention_forward, *args, **kwargs)

    def _max_pool(self, input: Tensor, *args: Any, **kwargs: Any) -> ModuleOutput:
        """Replace maximum pooling."""
        return max_pool2d(input, *args, **kwargs)

    def _avg_pool(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Replace average pooling."""
        return avg_pool2d(input, *args, **kwargs)


def may_call_functions(module: nn.Module) -> bool:
    """Return whether a forward pass may call a function that is replaced, which costs time for each function.

    Only models of PyTorch's own layers without pooling and attention never do.
    """
    layers = list(module.modules())
    known = all(type(layer).__module__.startswith("torch.nn.modules.") for layer in layers)
    return not known or any(isinstance(layer, _CALLING_LAYERS) for layer in layers)


class StackFunctions(ForwardFunctions):
    """The functions inside a traced forward pass of a stack; `counts` is the mask of the examples that count."""

    def __init__(self, masks: DropoutMasks) -> None:
        super().__init__(masks)
        self.counts: Tensor | None = None  # of one client, (examples,); None: all examples count
        self._handlers |= {F.scaled_dot_product_attention: self._product_attention, F.batch_norm: self._batch_norm}
        for function in (F.max_pool2d, torch.max_pool2d, F.avg_pool2d):
            del self._handlers[function]

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = _BATCH_NORM_EPS,
    ) -> Tensor:
        """Normalize by the statistics of the examples that count, and update the running statistics with them."""
        if self.counts is None or not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        flat = x.reshape(*x.shape[:2], -1)  # (examples, channels, positions)
        share = self.counts.to(x.dtype)[:, None, None]
        number = share.sum() * flat.shape[2]
        mean = (flat * share).sum((0, 2)) / number
        centred = flat - mean[None, :, None]
        variance = (centred * centred * share).sum((0, 2)) / number
        if running_mean is not None and running_var is not None:
            unbiased = variance * (number / (number - 1).clamp(min=1))
            running_mean.mul_(1 - momentum).add_(momentum * mean.detach())
            running_var.mul_(1 - momentum).add_(momentum * unbiased.detach())
        out = centred * torch.rsqrt(variance + eps)[None, :, None]
        if weight is not None:
            out = out * weight[None, :, None]
        if bias is not None:
            out = out + bias[None, :, None]
        return out.reshape(x.shape)
