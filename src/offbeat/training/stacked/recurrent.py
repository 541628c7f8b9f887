"""Recurrent layers as loops over their cells, because vmap does not support the layers of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Cell = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor | None], tuple[Tensor, ...]]

SUPPORTED = (nn.LSTM, nn.GRU, nn.RNN)


@contextmanager
def unrolled(module: nn.Module) -> Iterator[None]:
    """Replace `forward` of the recurrent layers inside the context."""
    layers = [m for m in module.modules() if type(m) in SUPPORTED and "forward" not in vars(m)]
    for layer in layers:
        layer.forward = partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: Any, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """Compute a layer on inputs (batch, time, features), (time, batch, features) or (time, features)."""
    if isinstance(inputs, nn.utils.rnn.PackedSequence):
        raise NotImplementedError("packed sequences cannot be stacked")
    if layer.dropout and layer.training and layer.num_layers > 1:
        raise NotImplementedError(f"dropout between the layers of {type(layer).__name__} draws its own random numbers")
    batched = inputs.dim() == 3
    x = inputs if batched else inputs.unsqueeze(1)
    x = x.transpose(0, 1) if batched and layer.batch_first else x  # (time, batch, features)
    directions = 2 if layer.bidirectional else 1
    parts = 2 if isinstance(layer, nn.LSTM) else 1
    states = _initial_states(layer, x, state, parts, directions, batched)
    last: list[tuple[Tensor, ...]] = []
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            out, end = _run_direction(layer, x, states[len(last)], depth, direction)
            outputs.append(out)
            last.append(end)
        x = outputs[0] if directions == 1 else torch.cat(outputs, 2)
    ends = tuple(torch.stack(part) for part in zip(*last, strict=True))
    if not batched:
        x, ends = x.squeeze(1), tuple(end.squeeze(1) for end in ends)
    elif layer.batch_first:
        x = x.transpose(0, 1)
    return x, ends if parts == 2 else ends[0]


def _initial_states(
    layer: Any, x: Tensor, state: Any, parts: int, directions: int, batched: bool
) -> list[tuple[Tensor, ...]]:
    """Return the initial state of each layer and direction: (hidden state,) or (hidden state, cell state)."""
    count = layer.num_layers * directions
    if state is None:
        sizes = (getattr(layer, "proj_size", 0) or layer.hidden_size, layer.hidden_size)[:parts]
        return [tuple(x.new_zeros(x.shape[1], size) for size in sizes)] * count
    initial = [part if batched else part.unsqueeze(1) for part in (state if parts == 2 else (state,))]
    return [tuple(part[i] for part in initial) for i in range(count)]


def _run_direction(
    layer: Any, x: Tensor, state: tuple[Tensor, ...], depth: int, direction: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one direction of one layer over the time steps; return its outputs and its last state."""
    suffix = f"_l{depth}{'_reverse' if direction else ''}"
    weights = layer._parameters
    bias, recurrent_bias = (weights.get(f"{kind}{suffix}") for kind in ("bias_ih", "bias_hh"))
    projection = weights.get(f"weight_hr{suffix}")
    entering = F.linear(x, weights[f"weight_ih{suffix}"], bias)  # for all time steps at once
    cell, recurrent = _cell(layer), weights[f"weight_hh{suffix}"]
    outputs = []
    for step in reversed(entering.unbind(0)) if direction else entering.unbind(0):
        state = cell(step, state, recurrent, recurrent_bias)
        if projection is not None:
            state = (F.linear(state[0], projection), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if direction else outputs), state


def _cell(layer: Any) -> Cell:
    """Return the function of one time step of a layer."""
    if isinstance(layer, nn.LSTM):
        return _lstm_cell
    if isinstance(layer, nn.GRU):
        return _gru_cell
    return partial(_simple_cell, torch.tanh if layer.nonlinearity == "tanh" else torch.relu)


def _lstm_cell(x: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """Compute one time step of an LSTM; the state is (hidden state, cell state)."""
    enter, forget, content, leave = (x + F.linear(state[0], weight, bias)).chunk(4, -1)
    cells = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(content)
    return torch.sigmoid(leave) * torch.tanh(cells), cells


def _gru_cell(x: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """Compute one time step of a GRU."""
    reset, update, new = x.chunk(3, -1)
    hidden_reset, hidden_update, hidden_new = F.linear(state[0], weight, bias).chunk(3, -1)
    new = torch.tanh(new + torch.sigmoid(reset + hidden_reset) * hidden_new)
    update = torch.sigmoid(update + hidden_update)
    return ((1 - update) * new + update * state[0],)


def _simple_cell(
    activation: Callable[[Tensor], Tensor], x: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, ...]:
    """Compute one time step of an RNN."""
    return (activation(x + F.linear(state[0], weight, bias)),)
