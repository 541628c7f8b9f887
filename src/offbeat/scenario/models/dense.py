"""Fully connected models."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch import nn

from offbeat.core.errors import require
from offbeat.scenario.models.model_base import Shape, check, seeded


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Softmax regression: one linear layer on the flattened input."""

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        check(input_shape, num_outputs)
        return seeded(seed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_outputs)))


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Fully connected layers with ReLU; `hidden` gives their widths."""

    hidden: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list from a file is meant as a tuple
        fine = len(self.hidden) > 0 and min(self.hidden) >= 1
        require(fine, f"mlp hidden = {self.hidden}: at least one layer, each of width 1 or more")

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        check(input_shape, num_outputs)
        return seeded(seed, lambda: nn.Sequential(nn.Flatten(), *dense(prod(input_shape), self.hidden, num_outputs)))


def dense(inputs: int, hidden: tuple[int, ...], outputs: int, bias: bool = True) -> list[nn.Module]:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise((inputs, *hidden)):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return [*layers, nn.Linear(hidden[-1] if hidden else inputs, outputs, bias=bias)]
