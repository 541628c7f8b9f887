"""LSTM layers of many clients at once, because torch's own LSTM does not support vmap.

Inside a context the LSTM layers of a module use these forward and backward passes, with one batched matrix product per
time step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from offbeat.core.errors import ConfigError

State = tuple[Tensor, Tensor]
# On a CPU torch's own layer, one client at a time, is faster on longer series: there its kernel outweighs its calls.
LONG_SERIES = 16
_through_sigmoid: Any = torch.ops.aten.sigmoid_backward.grad_input  # (error, out) -> error * out * (1 - out)
_through_tanh: Any = torch.ops.aten.tanh_backward.grad_input  # (error, out) -> error * (1 - out * out)


class StackedLstms:
    """The single-layer, unidirectional LSTMs with zero initial states of a module; others cannot be stacked."""

    def __init__(self, module: nn.Module) -> None:
        self._sites = [m for m in module.modules() if type(m) is nn.LSTM and _is_supported(m)]

    @contextmanager
    def install(self) -> Iterator[None]:
        for site in self._sites:
            site.forward = partial(_forward, site, site.forward)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for site in self._sites:
                del site.forward


def _is_supported(site: nn.LSTM) -> bool:
    return site.num_layers == 1 and not site.bidirectional and site.proj_size == 0


def _forward(site: Any, otherwise: Any, x: Any, hx: State | None = None) -> Any:
    if hx is not None or not isinstance(x, Tensor) or x.dim() != 3:
        return otherwise(x, hx)
    length = x.shape[1 if site.batch_first else 0]
    if length > LONG_SERIES and not x.is_cuda:
        raise ConfigError(f"on series of {length} steps an LSTM is faster one by one")
    bias = site.bias_ih_l0 + site.bias_hh_l0 if site.bias else site.weight_ih_l0.new_zeros(4 * site.hidden_size)
    weight = torch.cat([site.weight_ih_l0, site.weight_hh_l0], 1)  # of inputs and states, as one
    states, last = _Lstm.apply(x.transpose(0, 1) if site.batch_first else x, weight, bias)  # type: ignore[no-untyped-call]
    return states.transpose(0, 1) if site.batch_first else states, (states[-1:], last[None])


class _Lstm(Function):
    """The LSTM of one client: (time, examples, features) -> states and last cells, mapped over a stack."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> State:
        states, cells = _StackedLstm.apply(x.unsqueeze(1), weight[None], bias[None])  # type: ignore[no-untyped-call]
        return states[:, 0], cells[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: under vmap, the stacked function is differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[State, tuple[int, int]]:
        x, weight, bias = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, in_dims, strict=True)
        )
        return _StackedLstm.apply(x.transpose(0, 1), weight, bias), (1, 0)  # type: ignore[no-untyped-call]


class _StackedLstm(Function):
    """The LSTMs of K clients: x (T, K, B, F) and weight (K, 4H, F + H) -> states and last cells."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> State:
        T, K, B, F = x.shape
        H = weight.shape[1] // 4
        into = x.new_empty(T + 1, K, B, F + H)  # inputs and the state of the step before, side by side
        into[:T, ..., :F] = x
        into[0, ..., F:] = 0
        gates, news = x.new_empty(T, K, B, 4 * H), x.new_empty(T, K, B, H)
        cells, turned = x.new_empty(T + 1, K, B, H), weight.transpose(1, 2)
        cells[0] = 0
        for t in range(T):
            now = torch.baddbmm(bias[:, None], into[t], turned, out=gates[t])  # in torch's order: i, f, g, o
            torch.tanh(now[..., 2 * H : 3 * H], out=news[t])
            i, f, _, o = now.sigmoid_().chunk(4, -1)
            torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, news[t])  # c_t = f c_{t-1} + i g
            torch.mul(o, cells[t + 1].tanh(), out=into[t + 1, ..., F:])  # h_t = o tanh(c_t)
        ctx.save_for_backward(weight, into, gates, news, cells)
        ctx.needs = ctx.needs_input_grad[0]
        return into[1:, ..., F:].clone(), cells[T].clone()

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        d_states, d_last = errors
        weight, into, gates, news, cells = ctx.saved_tensors
        T, K, B, H = news.shape
        F = weight.shape[2] - H
        error, spare = gates.new_empty(K, B, 4 * H), gates.new_empty(K, B, H)
        to_i, to_f, to_g, to_o = error.chunk(4, -1)
        d_weight, d_bias = torch.zeros_like(weight), weight.new_zeros(K, 4 * H)
        d_x = into.new_empty(T, K, B, F) if ctx.needs else None
        d_state, d_cell = d_states[T - 1], d_last.clone()
        for t in range(T - 1, -1, -1):
            i, f, _, o = gates[t].chunk(4, -1)
            tanh = cells[t + 1].tanh()
            _through_sigmoid(d_state * tanh, o, grad_input=to_o)
            d_cell += _through_tanh(d_state * o, tanh, grad_input=spare)
            _through_sigmoid(d_cell * news[t], i, grad_input=to_i)
            _through_sigmoid(d_cell * cells[t], f, grad_input=to_f)
            _through_tanh(d_cell * i, news[t], grad_input=to_g)
            d_cell.mul_(f)
            d_weight.baddbmm_(error.transpose(1, 2), into[t])
            d_bias += error.sum(1)
            if t > 0 or d_x is not None:
                below = torch.bmm(error, weight)
                d_state = below[..., F:] + d_states[t - 1]
                if d_x is not None:
                    d_x[t] = below[..., :F]
        return d_x, d_weight, d_bias
