"""
Paper:    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks" (FedProx),
          MLSys 2020.
Follows:  Algorithm 2; the client half is the proximal objective h_k.
Notation: mu -> mu; w^t -> base; w_k^{t+1} -> local; K -> sample; h_k -> parts.proximal.Proximal.
Deviates: 1. neither the paper's text nor its code was at hand; what follows is the rule as others print and ship it.
          2. clients are sampled evenly and weighted by examples, as in FedAvg; the paper (and FLGo) samples by size and
             weighs evenly.
          3. mu=0.1 is FLGo's; the paper tunes it among 0.001, 0.01, 0.1 and 1, and the papers that compare with it do
             not say.
          4. how much a client trains is what `work` says: gamma-inexact answers of stragglers, cut short by the server,
             are not modelled; a deadline rejects who is late.
          5. the pull acts on trainable entries only, and is part of the gradient handed to the optimizer: momentum sees
             it.
Checked:  tests/strategies/test_fedprox.py (hand-worked), the laws, mu=0 is FedAvg bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from offbeat.core.about import About
from offbeat.core.parts.large_vectors import distance
from offbeat.core.parts.proximal import with_proximal
from offbeat.core.parts.rounds import AveragingState, Rounds, average_round
from offbeat.core.parts.selection import Sample
from offbeat.core.protocol import Action, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import Amount, NonNegative, Seconds, Settings


@dataclass(frozen=True, kw_only=True)
class FedProx(Settings):
    about: ClassVar[About] = About("synchronous", keeps="nothing", uploads="model")

    mu: NonNegative = 0.1  # the pull towards what the client was sent
    sample: Sample = None
    deadline: Seconds | None = None
    over_select: Amount = 0.0
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._pulled  # refuses work that cannot take the pull now, not at the first dispatch

    @cached_property
    def _rounds(self) -> Rounds:
        return Rounds(sample=self.sample, deadline=self.deadline, over_select=self.over_select)

    @cached_property
    def _pulled(self) -> LocalWork:
        return with_proximal(self.work, self.mu)  # h_k(w) = F_k(w) + mu / 2 ||w - w^t||^2

    def init(self, world: World) -> AveragingState:
        return AveragingState.of(world, clients=world.clients)

    def on_event(self, state: AveragingState, event: Event) -> list[Action]:
        actions = average_round(state, event, self._rounds, self._pulled)
        if isinstance(event, UpdateArrived):
            # ||w_k - w^t||, which mu is to keep short
            drift = distance(state.layout.trainable(event.local), state.layout.trainable(event.base))
            actions.append(Note({"drift": drift}, event.ticket))
        return actions
