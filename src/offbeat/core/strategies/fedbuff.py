"""
Paper:    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022.
Follows:  Algorithm 1 (server), staleness scaling of section 5.
Notation: K -> k; eta_g -> lr; Delta -> -delta (the paper subtracts base - local); s(tau) -> staleness(u).
Deviates: 1. the buffer is divided by K, not by the sum of the staleness weights (as the paper; FLSim leaves the sum to
             lr).
          2. client_weight is not in the paper: lr * sum of s(u) p_k delta, not divided by K, as APPFL ships it.
          3. exclude_buffered is FLGo's: a client whose update waits in the buffer is not served until the step. When
             nobody else can answer any more, the step is taken with what is there, or the run would stand still.
Checked:  tests/strategies/test_fedbuff.py (hand-worked), the laws, reductions to FedAsync's delta form and to FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar

from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require, require_whole
from offbeat.core.parts.buffer import Buffer
from offbeat.core.parts.selection import Seats, check_limit, hold, must_step, next_clients, release, stall_timer
from offbeat.core.parts.server_opt import Moments, Plain
from offbeat.core.parts.staleness import Polynomial, Staleness, as_staleness
from offbeat.core.parts.weights import Census, ClientWeight, check_weight
from offbeat.core.protocol import Action, Commit, Dispatch, Event, LocalWork, Reject, UpdateArrived, World
from offbeat.core.vector import Layout


@dataclass(slots=True)
class State:
    model: Tensor
    version: int
    layout: Layout
    seed: int
    census: Census
    seats: Seats = field(default_factory=Seats)
    buffer: Buffer = field(default_factory=Buffer)


@dataclass(frozen=True, kw_only=True)
class FedBuff:
    about: ClassVar[About] = About("semi-asynchronous", keeps="nothing", uploads="model")

    k: int = 10  # updates per step
    lr: float = 1.0  # server learning rate
    staleness: Staleness | str = Polynomial(a=0.5)  # 1 / sqrt(1 + u)
    client_weight: ClientWeight | None = None
    exclude_buffered: bool = False
    max_staleness: int | None = None
    concurrency: int | None = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        require_whole(k=self.k, max_staleness=self.max_staleness)
        require(self.k >= 1, f"k = {self.k}: the buffer holds at least 1 update")
        require(self.lr > 0 and isfinite(self.lr), f"lr = {self.lr}: must be positive and finite")
        require(
            self.max_staleness is None or self.max_staleness >= 0, f"max_staleness = {self.max_staleness}: 0 or more"
        )
        check_weight(self.client_weight)
        check_limit(self.concurrency)
        object.__setattr__(self, "staleness", as_staleness(self.staleness))

    def init(self, world: World) -> State:
        census = Census.of(world.clients, self.client_weight)
        return State(model=world.model, version=0, layout=world.layout, seed=world.seed, census=census)

    def on_event(self, state: State, event: Event) -> list[Action]:
        state.census.hear(event, self.client_weight)
        clients, timers = next_clients(state.seats, event, self.concurrency, state.seed)
        actions: list[Action] = []
        if isinstance(event, UpdateArrived):
            actions = self._collect(state, event)
        if must_step(state.seats, event, full=state.buffer.count >= self.k):
            actions.append(self._step(state))
            released, more = release(state.seats, self.concurrency, event.now)
            clients, timers = clients + released, timers + more
        timers = timers + stall_timer(state.seats, event)
        return [*actions, *timers, *(Dispatch(client, state.model, self.work) for client in clients)]

    def _collect(self, state: State, event: UpdateArrived) -> list[Action]:
        u = state.version - event.base_version
        if self.max_staleness is not None and u > self.max_staleness:
            return [Reject(event.client, event.ticket, f"staleness {u} is over {self.max_staleness}")]
        weight = as_staleness(self.staleness)(u) * state.census.weight(event.client, self.client_weight)
        state.buffer.add_delta(state.layout, event.base, event.local, weight)  # A += s(u) delta
        if self.exclude_buffered:
            hold(state.seats, event.client)
        return []

    def _step(self, state: State) -> Action:
        buffer, state.buffer = state.buffer, Buffer()
        assert buffer.total is not None
        # K updates as a rule; fewer only where nobody else could answer
        mean = buffer.total if self.client_weight else buffer.total / buffer.count
        model = Plain(lr=self.lr).step(Moments(), state.model, mean)  # w := w + eta_g A / K
        buffer.statistics.write(state.layout, model, state.model)
        state.model = model
        state.version += 1
        return Commit(model)
