"""
Paper:    Gu, Huang, Zhang, Huang, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", NeurIPS
          2021.
Follows:  MIFA (memory-augmented impatient federated averaging), after the authors' code: the table of updates, and both
          ways to start.
Notation: eta_t -> lr, with decay lr / (1 + t); t -> state.version; G_i -> state.table; N -> all clients known so far;
          A(t) -> the clients that report.
Deviates: 1. The text of the paper was not available, only its code. There eta_t decreases like 1 / t; here it is
             constant unless decay=True.
          2. While the code waits ("fdu"), it trains no client and then uses all clients at once, including unreachable
             ones. Here rounds continue from w_0, and the step is taken at the end of the round in which the last first
             report arrived.
          3. The server waits for clients known at the start until each has finished its first job. It does not wait for
             a client whose job was lost or that left: that client was available and counts as 0. It waits `patience`
             rounds for a client that never appeared.
          4. G_i of a lost client is kept, which is the idea of the method, or dropped after evict_after seconds: then
             G_i = 0 again.
          5. A round ends when all clients that were available at its start have reported or were lost (or at its
             deadline). A round without reports takes no step. With `epoch`, steps are the ticks of Fed-OGD
             (parts.epochs), and a tick without reports repeats the last step.
          6. average="heard" divides by the number of clients in the table, as FLGo and the authors of Fed-OGD do.
          7. Statistics are the mean over the table, of clients that have reported; counters take the maximum.
          8. The Fed-OGD paper prints MIFA as minus the mean of the active plus the mean of the memory; that is not MIFA
             and is not used here.
          9. Local training follows the experiment except for the rate. With momentum or Adam G_i is not a sum of
             gradients, but still the direction in which the client moved.
Checked:  tests/strategies/test_mifa.py (hand-worked), the laws, everybody available is FedAvg with equal weights, and
          with `epoch` Fed-OGD without anything to project on.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts import buffer_statistics
from offbeat.core.parts.buffer_statistics import Contributions
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.epochs import Epochs
from offbeat.core.parts.rounds import Round, RoundSettings
from offbeat.core.parts.selection import ServerState
from offbeat.core.parts.vector_sums import RunningSum
from offbeat.core.protocol import Action, ClientLost, ClientReady, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import WHOLE, Rate, Seconds, least
from offbeat.core.vector import reusable_memory


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    clients: Mapping[int, int]  # known at the start
    table: MutableMapping[int, Tensor]  # G_i in the params, the client's values in the statistics
    epochs: Epochs
    rounds: Round = field(default_factory=Round)
    total: RunningSum = field(default_factory=RunningSum)  # sum_i G_i
    newcomers: dict[int, None] = field(default_factory=dict)
    heard: dict[int, None] = field(default_factory=dict)  # since the last step
    waiting: bool = True  # until the table is filled
    waited: int = 0  # rounds so far
    # client known at the start that appeared -> whether its first job is over
    first: dict[int, bool] = field(default_factory=dict)
    absences: Absences = field(default_factory=Absences)


@dataclass(frozen=True, kw_only=True)
class Mifa(RoundSettings):
    about: ClassVar[About] = About("synchronous", keeps="its last gradient", uploads="model")

    lr: Rate = 0.08  # eta: rate of the clients and of the server step
    decay: bool = False  # use eta / (1 + t)
    # "fdu": no step until every client has been available once; "no_wait": start with a table of zeros
    wait: Literal["fdu", "no_wait"] = "fdu"
    # with "fdu", rounds to wait for a client that never appeared
    patience: Annotated[int, WHOLE, least(0, "must be 0 or more rounds")] = 10
    average: Literal["all", "heard"] = "all"  # divide by all known clients, or by those in the table
    epoch: Seconds | None = None  # seconds between steps, as in Fed-OGD; None: rounds
    deadline: Seconds | None = None  # seconds after which a round closes with the reports it has
    evict_after: EvictAfter = None  # seconds for which the gradient of a lost client is kept; None: the whole run
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        message = f"deadline = {self.deadline}: with epoch = {self.epoch} there are no rounds"
        require(self.epoch is None or self.deadline is None, message)
        message = f"work.lr = {self.work.lr}: clients train with lr = {self.lr}, because G = (base - local) / lr"
        require(self.work.lr in (None, self.lr), message)

    def _eta(self, t: int) -> float:
        """Return the rate at version t."""
        return self.lr / (1 + t) if self.decay else self.lr

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        table, epochs = world.store("gradients"), Epochs(self.epoch or 0.0)
        return State.of(world, clients=world.clients, table=table, epochs=epochs, waiting=self.wait == "fdu")

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Keep the last gradient of each client, and step along their mean at the end of a round or an epoch."""
        self._note_presence(state, event)
        for client in state.absences.update(event, self.evict_after, exempt=state.heard):
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

    def _dispatch(self, state: State, chosen: list[int]) -> list[Action]:
        """Dispatch the model with the current rate."""
        return state.dispatch(chosen, replace(self.work, lr=self._eta(state.version)))

    def _note_presence(self, state: State, event: Event) -> None:
        """Record newcomers, and while the table is filled, which clients appeared and finished their first job."""
        match event:
            case ClientReady() if event.client not in state.clients:
                state.newcomers[event.client] = None
            case ClientReady() if state.waiting:
                state.first.setdefault(event.client, False)
            case UpdateArrived() | ClientLost() if state.waiting and event.client in state.clients:
                state.first[event.client] = True

    def _remember(self, state: State, event: UpdateArrived) -> None:
        """Replace the gradient of a client in the table."""
        eta = self._eta(event.base_version)  # rate of this client's training; the step uses the current rate
        G = torch.sub(event.base, event.local, out=reusable_memory(event.local)).div_(eta)  # G_i = (x - y) / eta_t
        buffer_statistics.copy_client_statistics(state.layout, G, event.local)
        state.total.put(state.table, event.client, G)
        state.heard[event.client] = None

    def _still_waits(self, state: State) -> bool:
        """Return whether the server waits for first reports, after counting this round."""
        if state.waiting:
            state.waited += state.total.count > 0  # a tick before any possible report is not a round
            absent = len(state.first) < len(state.clients) and state.waited <= self.patience
            state.waiting = absent or not all(state.first.values())
        return state.waiting

    def _step(self, state: State) -> list[Action]:
        """Commit the step along the mean of the table, unless the server still waits."""
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
