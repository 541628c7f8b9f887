"""Server optimizers, which apply the aggregated direction d to the model (w + d is plain averaging).

They treat all entries alike; the strategies write the statistics afterwards (see `buffer_statistics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from offbeat.core.errors import require
from offbeat.core.vector import new_vector, reusable_memory, split_together


class ServerOptimizer(Protocol):
    """An update rule of the server."""

    def step(self, memory: Moments, w: Tensor, d: Tensor) -> Tensor:
        """Return the next model as a new tensor."""
        ...


@dataclass(slots=True)
class Moments:
    """Moments that an optimizer keeps between steps; part of a strategy's state."""

    first: Tensor | None = None
    second: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PlainStep:
    """Gradient step: w := w + lr d."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.lr > 0, f"server lr = {self.lr}: must be positive")

    def step(self, memory: Moments, w: Tensor, d: Tensor) -> Tensor:
        """Return the next model as a new tensor."""
        return torch.add(w, d, alpha=self.lr, out=reusable_memory(w))


@dataclass(frozen=True, slots=True)
class Momentum:
    """FedAvgM: vel := mu vel + d; w := w + vel, without a factor (1 - mu) and without Nesterov."""

    mu: float = 0.9

    def __post_init__(self) -> None:
        """Check the settings."""
        require(0 <= self.mu < 1, f"server momentum mu = {self.mu}: must lie in [0, 1)")

    def step(self, memory: Moments, w: Tensor, d: Tensor) -> Tensor:
        """Return the next model as a new tensor."""
        if memory.first is None:
            memory.first = new_vector(d).copy_(d)
        else:
            memory.first = torch.mul(memory.first, self.mu, out=reusable_memory(d)).add_(d)
        return torch.add(w, memory.first, out=reusable_memory(w))


@dataclass(frozen=True, slots=True)
class Adam:
    """FedAdam: no bias correction; the second moment starts at tau^2."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.lr > 0 and self.tau > 0, f"server Adam lr = {self.lr}, tau = {self.tau}: both must be positive")
        message = f"server Adam beta1 = {self.beta1}, beta2 = {self.beta2}: both lie in [0, 1)"
        require(0 <= self.beta1 < 1 and 0 <= self.beta2 < 1, message)

    def step(self, memory: Moments, w: Tensor, d: Tensor) -> Tensor:
        """Return the next model as a new tensor."""
        m = new_vector(d).zero_() if memory.first is None else memory.first
        v = new_vector(d).fill_(self.tau**2) if memory.second is None else memory.second
        model, memory.first, memory.second = new_vector(d), new_vector(d), new_vector(d)
        for w_, d_, m_, v_, m_new, v_new, w_new in split_together(w, d, m, v, memory.first, memory.second, model):
            torch.mul(m_, self.beta1, out=m_new).add_(d_, alpha=1 - self.beta1)  # m := beta1 m + (1 - beta1) d
            # v := beta2 v + (1 - beta2) d^2; w := w + lr m / (sqrt v + tau)
            torch.mul(v_, self.beta2, out=v_new).addcmul_(d_, d_, value=1 - self.beta2)
            torch.addcdiv(w_, m_new, torch.sqrt(v_new).add_(self.tau), value=self.lr, out=w_new)
        return model
