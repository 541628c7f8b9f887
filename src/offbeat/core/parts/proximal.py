"""The proximal term of FedProx, a client rule used by FedProx, FedAsync and FedAT."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from torch import Tensor

from offbeat.core.errors import require
from offbeat.core.protocol import Gradient, LocalJob, LocalRule, LocalWork


@dataclass(frozen=True)
class Proximal(LocalRule):
    """Minimize the local loss + (mu / 2) ||w - start||^2, which adds mu (w - start) to the gradient."""

    mu: float

    def __post_init__(self) -> None:
        require(self.mu >= 0 and isfinite(self.mu), f"proximal mu = {self.mu}: must be 0 or more, and finite")

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        return grad(w).add(w - job.start, alpha=self.mu), carry


def with_proximal(work: LocalWork, mu: float) -> LocalWork:
    """Return the work with a proximal term; mu = 0 returns it unchanged."""
    if mu == 0:
        return work
    require(
        work.rule is None, f"a proximal term of {mu} cannot be added to work that already has the rule {work.rule!r}"
    )
    return LocalWork(steps=work.steps, epochs=work.epochs, lr=work.lr, rule=Proximal(mu=mu), extras=work.extras)
