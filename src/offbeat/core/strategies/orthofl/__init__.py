"""
Paper:    Zhang, Li, Huang, Yu, Gupta, Shang, "Orthogonal Calibration for Asynchronous Federated Learning" (OrthoFL),
          arXiv 2025.
Follows:  Algorithm 1; eq. 2 and 4 (moving average), 5-8 (calibration); the ablations of section 4.4. The client half is
          plain SGD.
Notation: W^(t) -> state.model; t -> t, one more than state.version; tau -> state.tau; W^(tau+) -> state.snapshots;
          W_m^(t) -> Y, the local model; W_m^(tau+) -> C, the model sent to the client; Delta W -> D, Delta W_m -> d;
          beta_t -> beta_t.
Deviates: 1. Calibration precedes aggregation, as in Algorithm 1: D is the work of the other clients and must not
             contain the client's own update.
          2. A client that is new, was lost, refused or away is sent W and starts anew: tau := t - 1, W^(tau+) := C :=
             W. With "pairwise" its last d stays in the span of the others, or leaves it after evict_after seconds.
          3. reference="chain", first_alpha=1 is the public code: D is the weights last sent to any client minus C, and
             the first update of a run replaces the model. It is unknown which of the two produced the published tables.
          4. projection="pairwise" is one sentence in the paper, read as follows: the last d of all others,
             orthonormalized layer by layer, is removed from this d, which gives d~. Clients are sent a chain G := G +
             d~; the moving average W is evaluated.
          5. A layer is one param slice, with weight and bias separate. Where a client did not move, D is unchanged.
          6. Statistics of a calibrated reply are those of the client. In W they are mixed with beta_t, or replaced with
             moving_average=False; counters take the maximum.
          7. max_staleness is not in the paper (off by default). It counts from tau, and a refused client starts anew.
          8. Staleness counts from tau, not from the dispatch: with a limit on concurrency, a reply may wait while other
             updates arrive.
Checked:  tests/strategies/test_orthofl.py (spec vectors, every ablation, calibrate=False is FedAsync bit for bit), the
          laws, test_projection.py (orthogonal in every layer, and nothing closer is), bench/server_step.py.
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
from offbeat.core.parts.selection import Concurrency, Seated, next_clients
from offbeat.core.parts.staleness import MaxStaleness, Polynomial, reject_if_too_old
from offbeat.core.protocol import Action, ClientLost, Dispatch, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import Exponent, Settings, Share
from offbeat.core.strategies.orthofl.projection import add_orthogonal, remove_span_
from offbeat.core.vector import new_vector, reusable_memory


@dataclass(slots=True, kw_only=True)
class State(Seated):
    chain: Tensor | None  # the weights last sent to any client after calibration; None if not used
    # W after the last update of each client: published tensors, shared where equal
    snapshots: MutableMapping[int, Tensor]
    # C of the clients that wait for work; for the others it is the base of their update
    replies: MutableMapping[int, Tensor]
    updates: MutableMapping[int, Tensor]  # the last d of each client (pairwise)
    tau: dict[int, int] = field(default_factory=dict)  # client -> round of its last communication
    absences: Absences = field(default_factory=Absences)


@dataclass(frozen=True, kw_only=True)
class OrthoFL(Settings):
    about: ClassVar[About] = About("asynchronous", keeps="the model of its last update", uploads="model")

    beta: Share = 0.6  # weight of a fresh update in the moving average
    a: Exponent = 0.5  # exponent of the staleness discount s^-a
    # False: clients are sent W, as in FedAsync ("w/o Calib."); projection and reference require True
    calibrate: bool = True
    moving_average: bool = True  # False: W is the last calibrated model ("w/o MA")
    # D against the update of the client, or the update against those of the others
    projection: Literal["own", "pairwise"] = "own"
    # with "own": D of the moving average, or of the weights last sent
    reference: Literal["ma", "chain"] = "ma"
    first_alpha: Share | None = None  # weight of the very first update, instead of beta
    evict_after: EvictAfter = None  # with "pairwise": seconds for which a lost client's d is kept; None: the whole run
    max_staleness: MaxStaleness = None
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        message = f"evict_after = {self.evict_after}: applies only to projection = 'pairwise'"
        require(self.evict_after is None or (self.calibrate and self.projection == "pairwise"), message)

    @property
    def _chains(self) -> bool:
        """True if clients are sent a chain of weights instead of the calibrated moving average."""
        return self.calibrate and (self.projection == "pairwise" or self.reference == "chain")

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        stores = {name: world.store(name) for name in ("snapshots", "replies", "updates")}
        return State.of(world, chain=world.model if self._chains else None, **stores)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Mix each update into the moving average, and send its client the calibrated model."""
        actions: list[Action] = []
        for client in state.absences.update(event, self.evict_after):
            state.updates.pop(client, None)
        if isinstance(event, UpdateArrived):
            actions = self._apply_update(state, event)
        elif isinstance(event, ClientLost):
            self._forget(state, event.client)
        clients, timers = next_clients(state.seats, event, self.concurrency, state.seed)
        dispatches = [Dispatch(client, self._next_model(state, client), self.work) for client in clients]
        return [*actions, *timers, *dispatches]

    def _next_model(self, state: State, client: int) -> Tensor:
        """Return C, or W for a client that starts anew: then tau := t - 1, W^(tau+) := C := W."""
        if client in state.replies:
            return state.replies.pop(client)
        self._note_communication(state, client)
        return state.model

    def _note_communication(self, state: State, client: int) -> None:
        """Set tau and W^(tau+) of a client to the current round and model."""
        state.tau[client] = state.version
        if self.calibrate and not self._chains:
            state.snapshots[client] = state.model  # shared: a hundred newcomers need the memory of one model

    def _forget(self, state: State, client: int) -> None:
        """Let a client start anew at its next dispatch."""
        for table in (state.tau, state.snapshots, state.replies):
            table.pop(client, None)

    def _apply_update(self, state: State, event: UpdateArrived) -> list[Action]:
        """Mix an update into the moving average, and prepare the calibrated reply to its client."""
        client, Y, t = event.client, event.local, state.version + 1
        # not from the version at dispatch, since a reply may wait before it is sent
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
            W = C if state.layout.params_only else new_vector(C).copy_(C)  # C may be a received tensor
            buffer_statistics.mix(state.layout, W, state.model, Y, 1.0)
            C = W  # one tensor for commit, snapshot and reply
        commit = state.publish(W)
        self._note_communication(state, client)  # tau := t, W^(tau+) := W
        if self.calibrate:
            state.replies[client] = C
            state.chain = C if self._chains else None
        return [commit, Note(notes, event.ticket)]

    def _calibrated(self, state: State, event: UpdateArrived, s: int, notes: dict[str, float]) -> Tensor:
        """Return C := Y + D_perp: the work of the others without its component along the client's own update."""
        Y, C, W = event.local, event.base, state.model
        if self.projection == "pairwise":
            return self._chained(state, event, notes)
        if s == 1:
            return Y  # no other update in between: D = 0
        now, then = (W, state.snapshots.get(event.client, C)) if state.chain is None else (state.chain, C)
        # D = W^(t) - W^(tau+), d = Y - C; in each layer D_perp = D - <D, d> / <d, d> d; C := Y + D_perp
        reply, (notes["share"], notes["removed"]) = add_orthogonal(state.layout, Y, C, now, then)
        return reply

    def _chained(self, state: State, event: UpdateArrived, notes: dict[str, float]) -> Tensor:
        """Return G := G + d~, where d~ is the client's update without the span of the others' last updates."""
        Y, C, G = event.local, event.base, state.chain
        assert G is not None
        d = torch.sub(Y, C, out=reusable_memory(Y))
        others = [state.updates[client] for client in sorted(state.updates) if client != event.client]
        state.updates[event.client] = d
        d_tilde = new_vector(d).copy_(d)
        remove_span_(state.layout, d_tilde, others)  # d~ = d - sum_j <d, q_j> q_j
        before, after = (state.layout.trainable(v).norm().item() for v in (d, d_tilde))
        notes["kept"] = after / before if before > 0 else 0.0
        G = d_tilde.add_(G)  # G := G + d~
        buffer_statistics.copy_client_statistics(state.layout, G, Y)  # statistics of the client
        return G
