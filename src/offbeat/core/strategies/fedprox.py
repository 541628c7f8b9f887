"""
Paper:    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks" (FedProx),
          MLSys 2020.
Follows:  Algorithm 2; the client half minimizes the proximal objective h_k.
Notation: mu -> mu; w^t -> base; w_k^{t+1} -> local; K -> sample; h_k -> local_rules.Proximal.
Deviates: 1. Neither text nor code of the paper was available; the rule is taken from other descriptions and
             implementations.
          2. Clients are sampled uniformly and weighted by examples, as in FedAvg; the paper (and FLGo) samples by size
             and weights uniformly.
          3. mu=0.1 is the default of FLGo. The paper tunes it among 0.001, 0.01, 0.1 and 1; papers that compare with
             FedProx do not name their value.
          4. The amount of local training is set by `work`. Inexact solutions of stragglers that the server cuts short
             (gamma) are not modeled; a deadline rejects late updates.
          5. The proximal term acts on trainable entries only and is part of the gradient, so momentum includes it.
Checked:  tests/strategies/test_fedprox.py (hand-worked), the laws, mu=0 is FedAvg bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from offbeat.core.about import About
from offbeat.core.local_rules import with_proximal
from offbeat.core.parts.rounds import AveragesRounds, AveragingState
from offbeat.core.parts.selection import Sample
from offbeat.core.protocol import Action, Event, LocalWork, Note, UpdateArrived
from offbeat.core.settings import Amount, NonNegative, Seconds
from offbeat.core.vector import distance


@dataclass(frozen=True, kw_only=True)
class FedProx(AveragesRounds):
    about: ClassVar[About] = About("synchronous", keeps="nothing", uploads="model")

    mu: NonNegative = 0.1  # weight of the proximal term
    sample: Sample = None
    deadline: Seconds | None = None
    over_select: Amount = 0.0
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _ = self._pulled  # raises an error now, not at the first dispatch, if `work` has a rule

    @cached_property
    def _pulled(self) -> LocalWork:
        """The work with the proximal term, which pulls w to the model that was sent."""
        return with_proximal(self.work, self.mu)  # h_k(w) = F_k(w) + mu / 2 ||w - w^t||^2

    def on_event(self, state: AveragingState, event: Event) -> list[Action]:
        """Record an event in the state, and return the actions that it causes."""
        actions = self._average_round(state, event, self._pulled)
        if isinstance(event, UpdateArrived):
            # ||w_k - w^t||, which mu limits
            drift = distance(state.layout.trainable(event.local), state.layout.trainable(event.base))
            actions.append(Note({"drift": drift}, event.ticket))
        return actions
