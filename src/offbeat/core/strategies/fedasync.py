"""
Paper:    Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", OPT 2020.
Follows:  Algorithm 1 (mixing), the staleness functions of section 5.2.
Notation: alpha -> alpha; s(t - tau) -> staleness(u); rho -> rho; x_new -> local; x_{t-1} -> state.model.
Deviates: 1. u counts versions between dispatch and arrival, so a fresh update has weight alpha (the paper's t - tau is
             u + 1).
          2. mode="delta" is not in the paper: w + alpha_t p_k (local - base), what APPFL and FedCompass's baseline call
             FedAsync.
          3. updates arriving at one instant are mixed one by one, by client id; FLGo averages them.
          4. statistics="replace" is APPFL's too, in the delta form: omega = 1 instead of alpha_t p_k, the server has
             the last client's.
          5. no server-side limit on staleness by default (max_staleness rejects).
Checked:  tests/strategies/test_fedasync.py (hand-worked), the laws, FedBuff(k=1) reduces to mode="delta" while nothing
          is stale.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts import statistics
from offbeat.core.parts.proximal import with_proximal
from offbeat.core.parts.selection import Seats, check_limit, next_clients
from offbeat.core.parts.staleness import Polynomial, Staleness, as_staleness
from offbeat.core.parts.statistics import Statistics, check_statistics
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


@dataclass(frozen=True, kw_only=True)
class FedAsync:
    about: ClassVar[About] = About("asynchronous", keeps="nothing", uploads="model")

    alpha: float = 0.6  # weight of a fresh update, in (0, 1]
    staleness: Staleness | str = Polynomial(a=0.5)
    mode: Literal["mix", "delta"] = "mix"
    client_weight: ClientWeight | None = None  # p_k, in mode="delta"
    # of BatchNorm, in mode="delta": mixed in with alpha_t p_k, or replaced by the client's
    statistics: Statistics = "mix"
    rho: float = 0.005  # the client's proximal pull
    max_staleness: int | None = None
    concurrency: int | None = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        require(0 < self.alpha <= 1, f"alpha = {self.alpha}: must lie in (0, 1]")
        require(self.mode in ("mix", "delta"), f"mode = {self.mode!r}: 'mix' or 'delta'")
        require(self.mode == "delta" or self.client_weight is None, "client_weight counts only with mode='delta'")
        check_statistics(self.statistics)
        only = (
            f"statistics = {self.statistics!r} counts only with mode='delta': where the client's model is mixed "
            "in, so are they"
        )
        require(self.mode == "delta" or self.statistics == "mix", only)
        require(
            self.max_staleness is None or self.max_staleness >= 0, f"max_staleness = {self.max_staleness}: 0 or more"
        )
        check_weight(self.client_weight)
        check_limit(self.concurrency)
        object.__setattr__(self, "staleness", as_staleness(self.staleness))
        _ = self._pulled  # refuses a pull that cannot be meant now, not at the first client

    @cached_property
    def _pulled(self) -> LocalWork:
        return with_proximal(self.work, self.rho)

    def init(self, world: World) -> State:
        census = Census.of(world.clients, self.client_weight)
        return State(model=world.model, version=0, layout=world.layout, seed=world.seed, census=census)

    def on_event(self, state: State, event: Event) -> list[Action]:
        state.census.hear(event, self.client_weight)
        actions = self._absorb(state, event) if isinstance(event, UpdateArrived) else []
        clients, timers = next_clients(state.seats, event, self.concurrency, state.seed)
        actions += timers
        for client in clients:
            actions.append(Dispatch(client, state.model, self._pulled))
        return actions

    def _absorb(self, state: State, event: UpdateArrived) -> list[Action]:
        u = state.version - event.base_version
        if self.max_staleness is not None and u > self.max_staleness:
            return [Reject(event.client, event.ticket, f"staleness {u} is over {self.max_staleness}")]
        # alpha itself is never overwritten: each update is discounted for its own age only
        alpha_t = self.alpha * as_staleness(self.staleness)(u)
        if self.mode == "mix":
            model = torch.lerp(state.model, event.local, alpha_t)  # x_t = (1 - a_t) x_{t-1} + a_t x_new
        else:
            alpha_t *= state.census.weight(event.client, self.client_weight)
            model = torch.sub(event.local, event.base).mul_(alpha_t).add_(state.model)  # w + a_t p_k (local - base)
        statistics.mix(state.layout, model, state.model, event.local, 1.0 if self.statistics == "replace" else alpha_t)
        state.model = model
        state.version += 1
        return [Commit(model)]
