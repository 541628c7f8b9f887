"""
Paper:    Zhang, Li, Huang, Yu, Gupta, Shang, "Orthogonal Calibration for Asynchronous Federated Learning" (OrthoFL),
          arXiv 2025.
Follows:  Algorithm 1; eq. 2 and 4 (moving average), 5-8 (calibration); the ablations of section 4.4. The client half is
          plain SGD.
Notation: W^(t) -> state.model; t -> t, one more than state.version; tau -> state.tau; W^(tau+) -> state.snapshots;
          W_m^(t) -> Y, the local model; W_m^(tau+) -> C, what the client was sent; Delta W -> D, Delta W_m -> d; beta_t
          -> beta_t.
Deviates: 1. calibration comes before aggregation, as in Algorithm 1: D is what the others did, and must not hold the
             client's own update.
          2. a client that was lost, refused or away, or that is new, is sent W and starts anew: tau := t - 1, W^(tau+)
             := C := W. With "pairwise" its last d stays in the span of the others, or leaves it after evict_after
             seconds.
          3. reference="chain", first_alpha=1 is what the public code does: D is the weights last sent to anybody less
             C, and the first update of a run replaces the model. It is not known which of the two made the published
             tables.
          4. projection="pairwise" is one sentence in the paper. Read as: the last d of all others, orthonormalised
             layer by layer, leaves d~ of this one's d; a chain G := G + d~ is what clients are sent, the moving average
             W is evaluated.
          5. a layer is one param slice, weight and bias apart. Where a client did not move, the whole shift is kept.
          6. statistics of a calibrated reply are the client's own; in W they are mixed with beta_t, or replaced with
             moving_average=False; counters take the maximum.
          7. max_staleness is not in the paper (off by default); it counts from tau, and a refused client starts anew.
          8. staleness counts from tau, not from the dispatch: with concurrency a reply may wait for a seat while others
             go on.
Checked:  tests/strategies/test_orthofl.py (spec vectors, every ablation, calibrate=False is FedAsync bit for bit), the
          laws, tests/core/test_projection.py (orthogonal in every layer, and nothing closer is), bench/server_step.py.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts import buffer_statistics
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.large_vectors import new_vector, reusable_memory
from offbeat.core.parts.selection import Concurrency, Seated, next_clients
from offbeat.core.parts.staleness import MaxStaleness, Polynomial, reject_if_too_old
from offbeat.core.protocol import Action, ClientLost, Dispatch, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import Exponent, Settings, Share
from offbeat.core.strategies.orthofl.projection import add_orthogonal, remove_span_


@dataclass(slots=True, kw_only=True)
class State(Seated):
    chain: Tensor | None  # the weights last sent to anybody after calibration; None where nothing is taken from them
    # W right after the client's last update: published tensors, shared where they are the same
    snapshots: MutableMapping[int, Tensor]
    # C of the clients that wait for work; of the others their update brings it back
    replies: MutableMapping[int, Tensor]
    updates: MutableMapping[int, Tensor]  # pairwise: the last d of each client
    tau: dict[int, int] = field(default_factory=dict)  # the round of the client's last communication
    absences: Absences = field(default_factory=Absences)


@dataclass(frozen=True, kw_only=True)
class OrthoFL(Settings):
    about: ClassVar[About] = About("asynchronous", keeps="the model of its last update", uploads="model")

    beta: Share = 0.6  # weight of a fresh update in the moving average
    a: Exponent = 0.5  # s^-a discounts an old one
    # False: clients are sent W, as in FedAsync ("w/o Calib."); projection and reference count only with True
    calibrate: bool = True
    moving_average: bool = True  # False: W is the last calibrated client's ("w/o MA")
    # the shift against the client's update, or that against the others' updates
    projection: Literal["own", "pairwise"] = "own"
    # whose shift, with "own": the moving average's, or that of the weights last sent
    reference: Literal["ma", "chain"] = "ma"
    first_alpha: Share | None = None  # weight of the very first update in the moving average, instead of beta
    evict_after: EvictAfter = None  # with "pairwise": seconds a lost client's last update is kept; None: for ever
    max_staleness: MaxStaleness = None
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = f"evict_after = {self.evict_after}: only with projection = 'pairwise' is anything of the lost kept"
        require(self.evict_after is None or (self.calibrate and self.projection == "pairwise"), wrong)

    @property
    def _chains(self) -> bool:
        return self.calibrate and (self.projection == "pairwise" or self.reference == "chain")

    def init(self, world: World) -> State:
        stores = {name: world.store(name) for name in ("snapshots", "replies", "updates")}
        return State.of(world, chain=world.model if self._chains else None, **stores)

    def on_event(self, state: State, event: Event) -> list[Action]:
        actions: list[Action] = []
        for client in state.absences.update(event, self.evict_after):
            state.updates.pop(client, None)
        if isinstance(event, UpdateArrived):
            actions = self._absorb(state, event)
        elif isinstance(event, ClientLost):
            self._forget(state, event.client)
        clients, timers = next_clients(state.seats, event, self.concurrency, state.seed)
        return [*actions, *timers, *(Dispatch(client, self._sent(state, client), self.work) for client in clients)]

    # ------------------------------------------------------------ what a client is sent

    def _sent(self, state: State, client: int) -> Tensor:
        """C, or W for a client that starts anew: then tau := t - 1, W^(tau+) := C := W."""
        if client in state.replies:
            return state.replies.pop(client)
        self._communicated(state, client)
        return state.model

    def _communicated(self, state: State, client: int) -> None:
        state.tau[client] = state.version
        if self.calibrate and not self._chains:
            state.snapshots[client] = state.model  # the tensor itself: a hundred newcomers cost one model

    def _forget(self, state: State, client: int) -> None:
        state.tau.pop(client, None)
        state.snapshots.pop(client, None)
        state.replies.pop(client, None)

    # ------------------------------------------------------------ what an update does

    def _absorb(self, state: State, event: UpdateArrived) -> list[Action]:
        client, Y, t = event.client, event.local, state.version + 1
        # not from the version at dispatch, which may have waited for a seat; who was not served by us holds a plain W
        s = t - state.tau.get(client, event.base_version)
        if refused := reject_if_too_old(event, s - 1, self.max_staleness):
            self._forget(state, client)
            return refused
        notes = {"s": float(s)}
        C = self._calibrated(state, event, s, notes) if self.calibrate else Y  # before Y enters W
        if self.moving_average:
            beta_t = self.beta * Polynomial(a=self.a)(s - 1)  # beta_t = beta s^-a
            if state.version == 0 and self.first_alpha is not None:
                beta_t = self.first_alpha
            W = torch.lerp(state.model, Y, beta_t, out=new_vector(state.model))  # W := (1 - beta_t) W + beta_t Y
            buffer_statistics.mix(state.layout, W, state.model, Y, beta_t)
            notes["beta_t"] = beta_t
        else:
            W = C if state.layout.params_only else new_vector(C).copy_(C)  # C may be what was received
            buffer_statistics.mix(state.layout, W, state.model, Y, 1.0)
            C = W  # one tensor: it is committed, kept and sent
        commit = state.publish(W)
        self._communicated(state, client)  # tau := t, W^(tau+) := W
        if self.calibrate:
            state.replies[client] = C
            state.chain = C if self._chains else None
        return [commit, Note(notes, event.ticket)]

    def _calibrated(self, state: State, event: UpdateArrived, s: int, notes: dict[str, float]) -> Tensor:
        """C := Y + D_perp: what the others did, less what would undo, or repeat, this client's own work."""
        Y, C, W = event.local, event.base, state.model
        if self.projection == "pairwise":
            return self._chained(state, event, notes)
        if s == 1:
            return Y  # nobody else came in between: D = 0
        now, then = (W, state.snapshots.get(event.client, C)) if state.chain is None else (state.chain, C)
        # D = W^(t) - W^(tau+), d = Y - C; in each layer D_perp = D - <D, d> / <d, d> d; C := Y + D_perp
        reply, (notes["share"], notes["removed"]) = add_orthogonal(state.layout, Y, C, now, then)
        return reply

    def _chained(self, state: State, event: UpdateArrived, notes: dict[str, float]) -> Tensor:
        """G := G + d~, where d~ is the client's update without the span of the others' last ones."""
        Y, C, G = event.local, event.base, state.chain
        assert G is not None
        d = torch.sub(Y, C, out=reusable_memory(Y))
        others = [state.updates[client] for client in sorted(state.updates) if client != event.client]
        state.updates[event.client] = d
        left = new_vector(d).copy_(d)
        remove_span_(state.layout, left, others)  # d~ = d - sum_j <d, q_j> q_j
        before, after = (state.layout.trainable(v).norm().item() for v in (d, left))
        notes["kept"] = after / before if before > 0 else 0.0
        G = left.add_(G)  # G := G + d~
        buffer_statistics.copy_client_statistics(state.layout, G, Y)  # a reply keeps the client's own
        return G
