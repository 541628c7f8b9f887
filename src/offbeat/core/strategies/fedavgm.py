"""
Paper:    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
          Classification", arXiv 2019.
Follows:  The server update of FedAvgM.
Notation: beta -> mu; v -> memory.first; Delta w -> -d (the paper subtracts, d points from w to the mean of the
          updates).
Deviates: 1. The paper was not available; the rule is the one that FedCompass's authors compare with: server rate 1, no
             factor (1 - mu), no Nesterov.
          2. mu=0.9 is FedCompass's value (0.5 on Fed-ISIC2019); FLGo uses 0.01.
          3. A round without reports changes nothing: the velocity is neither applied again nor decayed.
          4. Statistics are averaged without velocity.
Checked:  tests/strategies/test_fedavgm.py (hand-worked), the laws, mu=0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.core.about import About
from offbeat.core.parts.rounds import AveragesRounds, AveragingState
from offbeat.core.parts.selection import Sample
from offbeat.core.parts.server_optimizers import Momentum
from offbeat.core.protocol import Action, Event, LocalWork
from offbeat.core.settings import Amount, BelowOne, Seconds


@dataclass(frozen=True, kw_only=True)
class FedAvgM(AveragesRounds):
    about: ClassVar[About] = About("synchronous", keeps="nothing", uploads="model")

    mu: BelowOne = 0.9  # server momentum
    sample: Sample = None
    deadline: Seconds | None = None
    over_select: Amount = 0.0
    work: LocalWork = LocalWork()

    def on_event(self, state: AveragingState, event: Event) -> list[Action]:
        """Record an event in the state, and return the actions that it causes."""
        # d = sum_k n_k w_k / sum_k n_k - w; v := mu v + d; w := w + v
        return self._average_round(state, event, self.work, Momentum(mu=self.mu))
