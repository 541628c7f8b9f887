"""
Paper:    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
Follows:  Algorithm 1 (FederatedAveraging), server half.
Notation: S_t -> the round's members; n_k -> num_examples; w_k -> local; C -> sample.
Deviates: 1. weights are normalised over those who answered, not over all clients; nobody answering keeps w.
          2. sample=None (everybody) by default; papers that sample say so in their preset.
          3. deadline and over-selection are the usual production options, off by default.
Checked:  tests/strategies/test_fedavg.py (hand-worked), the laws, FedBuff(k=all, exclude_buffered) reduces to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.core.about import About
from offbeat.core.parts.buffer import Buffer
from offbeat.core.parts.rounds import Round, Rounds
from offbeat.core.protocol import Action, Commit, Dispatch, Event, LocalWork, UpdateArrived, World
from offbeat.core.vector import Layout


@dataclass(slots=True)
class State:
    model: Tensor
    version: int
    layout: Layout
    clients: Mapping[int, int]
    seed: int
    rounds: Round = field(default_factory=Round)
    answers: Buffer = field(default_factory=Buffer)


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    about: ClassVar[About] = About("synchronous", keeps="nothing", uploads="model")

    sample: int | float | None = None  # clients a round: a number, a share of all, or everybody
    deadline: float | None = None  # seconds; a round closes then with whoever answered
    over_select: float = 0.0  # ask (1 + this) times as many, close when `sample` have answered
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        self._rounds()

    def _rounds(self) -> Rounds:
        return Rounds(sample=self.sample, deadline=self.deadline, over_select=self.over_select)

    def init(self, world: World) -> State:
        return State(model=world.model, version=0, layout=world.layout, clients=world.clients, seed=world.seed)

    def on_event(self, state: State, event: Event) -> list[Action]:
        turn = self._rounds().turn(state.rounds, event, state.clients, state.seed)
        actions = turn.actions
        if turn.counts:
            assert isinstance(event, UpdateArrived)
            state.answers.add(state.layout, event.local, float(event.num_examples), event.local)
        if turn.closes:
            actions = [*self._close(state), *actions]
        return actions + [Dispatch(client, state.model, self.work) for client in turn.chosen]

    def _close(self, state: State) -> list[Action]:
        answers, state.answers = state.answers, Buffer()
        if answers.total is None:
            return []  # nobody answered: keep w
        model = answers.total / answers.weight  # w := sum_k n_k w_k / sum_k n_k
        answers.statistics.write(state.layout, model, state.model)
        state.model = model
        state.version += 1
        return [Commit(model)]
