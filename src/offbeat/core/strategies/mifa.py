"""
Paper:    Gu, Huang, Zhang, Huang, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", NeurIPS
          2021.
Follows:  MIFA (memory-augmented impatient federated averaging), after the authors' code: the table of updates and both
          its starts.
Notation: eta_t -> lr, with decay lr / (1 + t); t -> state.version; G_i -> state.table; N -> all clients known so far;
          A(t) -> who answers.
Deviates: 1. the paper's text was not at hand, only its code. There eta_t falls like 1 / t; here it is constant unless
             decay=True.
          2. while it waits ("fdu"), the code trains nobody and then asks everybody at once, also those who are away.
             Here rounds go on from w_0, and the step is taken at the end of the round in which the last first answer
             came.
          3. it waits for clients known at the start, until each has answered its first job. A job that was lost, or a
             client that left, is not waited for: it has been available, and counts as 0. Who never came at all is
             waited for `patience` rounds.
          4. G_i of a lost client is kept, as is the point of the method, or given up after evict_after seconds: then
             G_i = 0 again.
          5. a round is over when all who were available at its beginning are heard or lost (or at its deadline). One
             that nobody answers takes no step. With `epoch`, steps are Fed-OGD's ticks (parts.epochs), and a tick
             without answers repeats the last step.
          6. average="heard" divides by the answers in the table, as FLGo and Fed-OGD's authors do.
          7. statistics are the mean over the table, of those who have answered; counters take the maximum.
          8. Fed-OGD's paper prints MIFA as minus the mean of the active plus the mean of the memory: that is not MIFA,
             and not done here.
          9. local training is the experiment's but for the rate; with momentum or Adam G_i is not a sum of gradients,
             but still the way the client went.
Checked:  tests/strategies/test_mifa.py (hand-worked), the laws, everybody available is FedAvg with equal weights, and
          with `epoch` Fed-OGD without anything to project on.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts import buffer_statistics
from offbeat.core.parts.buffer_statistics import Contributions
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.epochs import Epochs
from offbeat.core.parts.large_vectors import reusable_memory
from offbeat.core.parts.rounds import Round, Rounds
from offbeat.core.parts.server_state import ServerState
from offbeat.core.parts.vector_sums import RunningSum
from offbeat.core.protocol import (
    Action,
    ClientLost,
    ClientReady,
    Dispatch,
    Event,
    LocalWork,
    Note,
    UpdateArrived,
    World,
)
from offbeat.core.settings import WHOLE, Rate, Seconds, Settings, least


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    clients: Mapping[int, int]  # known at the start
    table: MutableMapping[int, Tensor]  # G_i in the params, the client's own values in the statistics
    epochs: Epochs
    rounds: Round = field(default_factory=Round)
    total: RunningSum = field(default_factory=RunningSum)  # sum_i G_i
    newcomers: dict[int, None] = field(default_factory=dict)
    heard: dict[int, None] = field(default_factory=dict)  # since the last step
    waiting: bool = True  # for the table to be filled
    waited: int = 0  # rounds
    # clients known at the start that came -> is its first job over?
    first: dict[int, bool] = field(default_factory=dict)
    absences: Absences = field(default_factory=Absences)


@dataclass(frozen=True, kw_only=True)
class Mifa(Settings):
    about: ClassVar[About] = About("synchronous", keeps="its last gradient", uploads="model")

    lr: Rate = 0.08  # eta: the rate clients train with, and that of the server's step
    decay: bool = False  # eta / (1 + t)
    # no step before everybody has been available once; or begin with a table of zeros
    wait: Literal["fdu", "no_wait"] = "fdu"
    # with "fdu", rounds that a client which never came is waited for
    patience: Annotated[int, WHOLE, least(0, "must be 0 or more rounds")] = 10
    average: Literal["all", "heard"] = "all"  # divide by all clients known, or by those in the table
    epoch: Seconds | None = None  # between steps, as Fed-OGD's; None: rounds
    deadline: Seconds | None = None  # a round closes then with whoever answered
    evict_after: EvictAfter = None  # seconds a lost client's gradient is kept; None: for ever
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        super().__post_init__()
        neither = f"deadline = {self.deadline}: with epoch = {self.epoch} there are no rounds"
        require(self.epoch is None or self.deadline is None, neither)
        wrong = f"work.lr = {self.work.lr}: clients train with lr = {self.lr}, since G = (base - local) / lr"
        require(self.work.lr in (None, self.lr), wrong)

    @cached_property
    def _rounds(self) -> Rounds:
        return Rounds(deadline=self.deadline)

    def _eta(self, t: int) -> float:
        return self.lr / (1 + t) if self.decay else self.lr

    def init(self, world: World) -> State:
        table, epochs = world.store("gradients"), Epochs(self.epoch or 0.0)
        return State.of(world, clients=world.clients, table=table, epochs=epochs, waiting=self.wait == "fdu")

    def on_event(self, state: State, event: Event) -> list[Action]:
        self._meet(state, event)
        for client in state.absences.update(event, self.evict_after, unless=state.heard.__contains__):
            state.total.drop(state.table, client)  # G_i := 0
        if self.epoch is not None:
            ticks = state.epochs.update(event)
            if isinstance(event, UpdateArrived):
                self._remember(state, event)
            actions = self._step(state) if ticks else []
            chosen = state.epochs.serve(None, state.seed) if ticks else []
            return [*actions, *self._dispatch(state, chosen), *state.epochs.timer(event)]
        turn = self._rounds.turn(state.rounds, event, state.clients, state.seed)
        if turn.counts and isinstance(event, UpdateArrived):
            self._remember(state, event)
        actions = self._step(state) if turn.closes and state.heard else []
        return [*actions, *turn.actions, *self._dispatch(state, turn.chosen)]

    def _dispatch(self, state: State, chosen: list[int]) -> list[Dispatch]:
        work = replace(self.work, lr=self._eta(state.version))
        return [Dispatch(client, state.model, work) for client in chosen]

    def _meet(self, state: State, event: Event) -> None:
        match event:
            case ClientReady() if event.client not in state.clients:
                state.newcomers[event.client] = None
            case ClientReady() if state.waiting:
                state.first.setdefault(event.client, False)
            case UpdateArrived() | ClientLost() if state.waiting and event.client in state.clients:
                state.first[event.client] = True

    def _remember(self, state: State, event: UpdateArrived) -> None:
        eta = self._eta(event.base_version)  # what this client trained with; the step has the rate of its own time
        G = torch.sub(event.base, event.local, out=reusable_memory(event.local)).div_(eta)  # G_i = (x - y) / eta_t
        buffer_statistics.copy_client_statistics(state.layout, G, event.local)
        state.total.put(state.table, event.client, G)
        state.heard[event.client] = None

    def _still_waits(self, state: State) -> bool:
        if state.waiting:
            state.waited += state.total.count > 0  # a tick at which nobody can have answered is no round
            absent = len(state.first) < len(state.clients) and state.waited <= self.patience
            state.waiting = absent or not all(state.first.values())
        return state.waiting

    def _step(self, state: State) -> list[Action]:
        N = len(state.clients) + len(state.newcomers)
        eta, known = self._eta(state.version), state.total.count
        heard, state.heard = len(state.heard), {}
        note = Note({"heard": heard, "remembered": known - heard, "never_heard": N - known, "eta": eta})
        if self._still_waits(state) or state.total.total is None:
            return [note]
        over = N if self.average == "all" else known
        # w := w - eta_t 1/N sum_i G_i
        model = torch.sub(state.model, state.total.total, alpha=eta / over, out=reusable_memory(state.model))
        Contributions.of(state.layout, state.table, state.total.weights).write(state.layout, model, state.model)
        return [state.publish(model), note]
