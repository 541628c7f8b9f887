"""
Paper:    Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", OPT 2020.
Follows:  Algorithm 1 (mixing), the staleness functions of section 5.2.
Notation: alpha -> alpha; s(t - tau) -> staleness(u); rho -> rho; x_new -> local; x_{t-1} -> state.model.
Deviates: 1. u counts the versions between dispatch and arrival, so a fresh update has weight alpha (the paper's t - tau
             is u + 1).
          2. mode="delta" is not in the paper: w + alpha_t p_k (local - base), called FedAsync in APPFL and as a
             baseline in FedCompass.
          3. Updates that arrive at the same time are mixed one by one in order of client id; FLGo averages them.
          4. Statistics are mixed as values with omega = alpha_t (delta form: alpha_t p_k); counters take the maximum.
             statistics="replace" is APPFL's choice in the delta form: omega = 1, so the server has those of the last
             client.
          5. Staleness is not limited by default (max_staleness rejects updates).
Checked:  tests/strategies/test_fedasync.py (hand-worked), the laws, FedBuff(k=1) reduces to mode="delta" while nothing
          is stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.local_rules import with_proximal
from offbeat.core.parts import buffer_statistics
from offbeat.core.parts.buffer_statistics import Statistics
from offbeat.core.parts.client_records import ClientExampleCounts, ClientWeight
from offbeat.core.parts.selection import Concurrency, Seated, serve
from offbeat.core.parts.staleness import MaxStaleness, Polynomial, Staleness, as_staleness, reject_if_too_old
from offbeat.core.protocol import Action, Event, LocalWork, UpdateArrived, World
from offbeat.core.settings import Settings, Share
from offbeat.core.vector import reusable_memory


@dataclass(slots=True, kw_only=True)
class State(Seated):
    census: ClientExampleCounts


@dataclass(frozen=True, kw_only=True)
class FedAsync(Settings):
    about: ClassVar[About] = About("asynchronous", keeps="nothing", uploads="model")

    alpha: Share = 0.6  # weight of a fresh update
    staleness: Staleness | str = Polynomial(a=0.5)
    mode: Literal["mix", "delta"] = "mix"  # (1 - a) x + a local, or x + a (local - base)
    client_weight: ClientWeight | None = None  # p_k, in mode="delta"
    # in mode="delta": BatchNorm statistics are mixed with weight alpha_t p_k, or replaced by the client's
    statistics: Statistics = "mix"
    rho: float = 0.005  # weight of the client's proximal term
    max_staleness: MaxStaleness = None
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()
    # attributes of each object that are not dataclass fields; cached properties would slow down attribute access
    _s: ClassVar[Staleness]
    _pulled: ClassVar[LocalWork]

    def __post_init__(self) -> None:
        """Check the settings and set derived fields."""
        super().__post_init__()
        require(self.mode == "delta" or self.client_weight is None, "client_weight applies only to mode='delta'")
        only = "applies only to mode='delta': mode='mix' always mixes statistics"
        require(self.mode == "delta" or self.statistics == "mix", f"statistics = {self.statistics!r} {only}")
        staleness = as_staleness(self.staleness)
        require(callable(staleness), f"staleness = {staleness!r}: give a function of u or the name of one")
        object.__setattr__(self, "staleness", staleness)
        object.__setattr__(self, "_s", staleness.__call__)  # bound method: saves a lookup per call
        # raises an error now, not at the first dispatch, if `work` has a rule
        object.__setattr__(self, "_pulled", with_proximal(self.work, self.rho))

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State.of(world, census=ClientExampleCounts.of(world.clients, self.client_weight))

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Mix each update into the model when it arrives."""
        if self.client_weight is not None:
            state.census.update(event, self.client_weight)
        if isinstance(event, UpdateArrived):
            return self._apply_update(state, event) + serve(state, event, self.concurrency, self._pulled)
        return serve(state, event, self.concurrency, self._pulled)

    def _apply_update(self, state: State, event: UpdateArrived) -> list[Action]:
        """Mix an update into the model, discounted for its staleness, or reject it."""
        u = state.version - event.base_version
        if self.max_staleness is not None and (refused := reject_if_too_old(event, u, self.max_staleness)):
            return refused
        # never overwrite alpha: each update is discounted for its own age only
        alpha_t = self.alpha * self._s(u)
        if self.mode == "mix":
            # x_t = (1 - a_t) x_{t-1} + a_t x_new
            model = torch.lerp(state.model, event.local, alpha_t, out=reusable_memory(state.model))
        else:
            alpha_t *= state.census.weight(event.client, self.client_weight)
            model = torch.sub(event.local, event.base, out=reusable_memory(state.model))
            model.mul_(alpha_t).add_(state.model)  # w + a_t p_k (local - base)
        if not state.layout.params_only:
            omega = 1.0 if self.statistics == "replace" else alpha_t
            buffer_statistics.mix(state.layout, model, state.model, event.local, omega)
        return [state.publish(model)]
