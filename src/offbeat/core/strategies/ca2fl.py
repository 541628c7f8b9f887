"""
Paper:    Wang et al., "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
          Calibration", ICLR 2024.
Follows:  The server of CA2FL (the paper's name for it), in ascent form. Clients train without a rule of the method.
Notation: K (M elsewhere) -> k; eta -> lr; N -> all clients known so far; h_t^i -> state.caches; h_t -> state.h;
          Delta_t^i -> delta; v_t -> v.
Deviates: 1. Neither text nor code of the paper was available; the rule is taken from FLGo's implementation and from
             descriptions by others.
          2. h_i is replaced when the upload arrives, so the second upload of a client within one buffer is compared
             with its first (as in FLGo).
          3. h is the mean of the caches at the last step, over the clients known then. Clients that never reported
             count as 0. Caches of lost clients are kept, or dropped after evict_after seconds: h_i = 0 from then on,
             and in h from the next step on.
          4. k=10 as in FedBuff; FLGo takes a tenth of the clients. The paper tunes eta; 1 is FLGo's value.
          5. Statistics are the mean over the buffer, without a cache; counters take the maximum.
Checked:  tests/strategies/test_ca2fl.py (hand-worked), the laws, FedBuff without discount while every buffer contains
          each client once.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.selection import Concurrency, Seated, serve
from offbeat.core.parts.vector_sums import RunningSum, WeightedSum
from offbeat.core.protocol import Action, ClientReady, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import WHOLE, Rate, Settings, least
from offbeat.core.vector import param_norm, reusable_memory


@dataclass(slots=True, kw_only=True)
class State(Seated):
    clients: Mapping[int, int]  # known at the start
    caches: MutableMapping[int, Tensor]  # client -> its last delta
    newcomers: dict[int, None] = field(default_factory=dict)
    total: RunningSum = field(default_factory=RunningSum)  # of the caches, so that a step need not read them all
    h: Tensor | None = None  # mean over all clients at the last step; None: 0
    buffer: WeightedSum = field(default_factory=WeightedSum)
    absences: Absences = field(default_factory=Absences)


@dataclass(frozen=True, kw_only=True)
class CA2FL(Settings):
    about: ClassVar[About] = About("semi-asynchronous", keeps="its last delta", uploads="model")

    k: Annotated[int, WHOLE, least(1, "the buffer holds at least 1 update")] = 10  # updates per step
    lr: Rate = 1.0  # server learning rate
    evict_after: EvictAfter = None  # seconds for which the cache of a lost client is kept; None: the whole run
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State.of(world, clients=world.clients, caches=world.store("deltas"))

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Buffer the difference of each update from its client's cache, and step when the buffer is full."""
        actions: list[Action] = []
        for client in state.absences.update(event, self.evict_after):
            state.total.drop(state.caches, client)  # h_i := 0
        if isinstance(event, (ClientReady, UpdateArrived)) and event.client not in state.clients:
            state.newcomers[event.client] = None
        if isinstance(event, UpdateArrived):
            actions.append(self._collect(state, event))
            if state.buffer.count == self.k:
                actions += self._step(state)
        return actions + serve(state, event, self.concurrency, self.work)

    def _collect(self, state: State, event: UpdateArrived) -> Action:
        """Add the difference of an update from the client's cache to the buffer, and replace the cache."""
        client = event.client
        delta = torch.sub(event.local, event.base, out=reusable_memory(event.local))  # Delta_i
        # a store may be on disk: read once for the residual and the sum (so not RunningSum.put)
        h_i = state.caches.get(client)
        residual = delta if h_i is None else torch.sub(delta, h_i, out=reusable_memory(delta))
        if h_i is not None:
            state.total.remove(h_i)
        state.buffer.add(state.layout, residual, 1.0, event.local)  # acc += Delta_i - h_i
        state.caches[client] = delta  # h_i := Delta_i
        state.total.add(state.caches[client])  # read back, because a store may round
        if state.total.needs_renewal:
            state.total.renew(state.caches[other] for other in sorted(state.caches))
        length = param_norm(state.layout, delta)
        return Note({"residual": param_norm(state.layout, residual) / length if length > 0 else 0.0}, event.ticket)

    def _step(self, state: State) -> list[Action]:
        """Step along the calibrated buffer, and take the mean of the caches for the next step."""
        buffer, state.buffer = state.buffer, WeightedSum()
        assert buffer.total is not None
        assert state.total.total is not None
        v = buffer.total.div_(self.k)
        if state.h is not None:
            v += state.h  # v_t = h_t + 1/K sum_{i in S} (Delta_i - h_i)
        model = torch.add(state.model, v, alpha=self.lr, out=reusable_memory(v))  # w := w + eta v_t
        buffer.statistics.write(state.layout, model, state.model)
        N = len(state.clients) + len(state.newcomers)
        h = 0.0 if state.h is None else param_norm(state.layout, state.h)
        note = Note({"h": h, "v": param_norm(state.layout, v), "cached": state.total.count / N})
        state.h = torch.div(state.total.total, N, out=reusable_memory(v))  # h_{t+1} = 1/N sum_i h_i
        return [state.publish(model), note]
