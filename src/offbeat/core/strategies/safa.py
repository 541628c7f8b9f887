"""
Paper:    Wu, He, Lin, Mao, Maple, Jarvis, "SAFA: A Semi-Asynchronous Protocol for Fast Federated Learning with Low
          Overhead", IEEE Transactions on Computers 2021.
Follows:  The authors' code: lag-tolerant distribution, CFCFM (compensatory first come, first merge) selection,
          three-step aggregation.
Notation: tau -> lag; C -> sample; T_lim -> cap; r -> state.round; v_i -> state.versions; P(r) -> state.picks; Q(r) ->
          state.bypass; c_i -> state.caches; n_i / n -> the weights of state.total, the running sum of all c_i.
Deviates: 1. The text of the paper was not available, only its code, which simulates rounds of known length. Here a
             round is a period of time: a client that reports and was not picked in the last round is picked, all
             others go to the bypass. The round ends when the quota of picks is met, when no client is at work, or cap
             seconds after it began. Missing picks are then taken from the bypass, in order of arrival.
          2. The first round is the "all-in" epoch of the code: it waits for all clients (or cap), and all reports are
             cached before the average. Its picks are the first to arrive.
          3. A client that never reported, such as a newcomer, has no c_i and is left out of the average, instead of
             counting as w_0. So is a client that was lost for evict_after seconds: its c_i is dropped, and w is
             averaged without it from the next round on.
          4. A client that becomes deprecated while it trains finds out on arrival: its update is rejected, and it is
             sent w at once. (The code knows this at the start of the round.) So a client that needs more than lag + 1
             rounds per job never contributes.
          5. Work is dispatched when a round begins; clients that join, come back or are lost in between wait for the
             next one.
          6. A tolerable client continues from its c_i. In the code, a client that crashed continues from the model it
             was last sent.
          7. lag=5 is reported to be the value of the paper (the code's signature has 1). Statistics are averaged over
             the c_i; counters take the maximum.
          8. n_i is the number of examples that the client reported with c_i.
          9. A round in which no c_i changed commits nothing. A round without picks may commit, because of earlier
             bypassed updates or c_i := w.
Checked:  tests/strategies/test_safa.py (hand-worked), the laws, with everybody picked in every round it is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.parts.buffer_statistics import Contributions
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.selection import Sample, ServerState, sample_size
from offbeat.core.parts.vector_sums import RunningSum
from offbeat.core.protocol import (
    Action,
    ClientLost,
    ClientReady,
    Dispatch,
    Event,
    LocalWork,
    Note,
    Reject,
    SetTimer,
    TimerFired,
    UpdateArrived,
    World,
)
from offbeat.core.settings import WHOLE, Seconds, Settings, least
from offbeat.core.vector import reusable_memory

ROUND = "round"  # timer that ends a round and begins the next: at the end of an instant, or at the cap


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    clients: Mapping[int, int]  # known at the start
    caches: MutableMapping[int, Tensor]  # c_i of all clients that have reported
    bypassed: MutableMapping[int, Tensor]  # updates of the clients in the bypass
    total: RunningSum = field(default_factory=RunningSum)  # sum_i n_i c_i
    changed: bool = False  # since the last Commit
    round: int = -1
    quota: int = 0  # number of picks that ends the round
    ending: bool = False  # the round ends after this instant
    newcomers: dict[int, None] = field(default_factory=dict)
    idle: dict[int, None] = field(default_factory=dict)
    at_work: dict[int, None] = field(default_factory=dict)
    # client -> last round in which it reported, or round of the model it was sent
    versions: dict[int, int] = field(default_factory=dict)
    late: dict[int, None] = field(default_factory=dict)  # deprecated while at work: reject, then send w
    picks: dict[int, None] = field(default_factory=dict)
    picked: dict[int, None] = field(default_factory=dict)  # picks of the last round
    bypass: dict[int, int] = field(default_factory=dict)  # client -> n_i, in order of arrival
    absences: Absences = field(default_factory=Absences)


@dataclass(frozen=True, kw_only=True)
class Safa(Settings):
    about: ClassVar[About] = About("semi-asynchronous", keeps="its last model", uploads="model")
    clients_keep: ClassVar[bool] = True  # a tolerable client continues from its own model without a download

    lag: Annotated[int, WHOLE, least(0, "must be 0 or more rounds")] = 5  # number of rounds a client may be behind
    sample: Sample = 0.3  # C, picks per round: a number, a share of all clients, or all (None)
    cap: Seconds | None = None  # largest duration of a round in seconds
    evict_after: EvictAfter = None  # seconds for which the model of a lost client is kept; None: the whole run
    work: LocalWork = LocalWork()

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        caches, bypassed = world.store("models"), world.store("bypass")
        return State.of(world, clients=world.clients, caches=caches, bypassed=bypassed)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Pick or bypass the updates of a round, and average the caches when it ends."""
        actions: list[Action] = []
        pending = {**state.picks, **state.bypass} if self.evict_after is not None else {}
        for client in state.absences.update(event, self.evict_after, exempt=pending):
            self._evict(state, client)
        match event:
            case ClientReady():
                actions = self._add_ready(state, event.client)
            case UpdateArrived():
                actions = [self._receive(state, event)]
            case ClientLost():
                (state.idle if event.ticket is None else state.at_work).pop(event.client, None)
            case TimerFired(key=key) if key == ROUND:
                return [*self._end_round(state), *self._begin_round(state, event.now)]
        if self._is_over(state) and not state.ending:
            state.ending = True
            actions.append(SetTimer(ROUND, event.now))  # updates of this instant still belong to the round
        return actions

    def _is_over(self, state: State) -> bool:
        """Return whether the round has its quota of picks, or no client is at work."""
        met = state.round > 0 and len(state.picks) >= state.quota
        return met or (not state.at_work and bool(state.idle or state.picks or state.bypass))

    def _add_ready(self, state: State, client: int) -> list[Action]:
        """Let a ready client wait for the next round; send w at once to one whose update was rejected as late."""
        if client not in state.clients:
            state.newcomers[client] = None
        if client in state.late and state.at_work and not state.ending:
            return [self._dispatch(state, client)]
        state.idle[client] = None
        return []

    def _receive(self, state: State, event: UpdateArrived) -> Action:
        """Pick an update, add it to the bypass, or reject it."""
        client = event.client
        del state.at_work[client]
        if client in state.late:
            return Reject(client, event.ticket, f"more than {self.lag} rounds behind")
        behind = state.round - 1 - state.versions[client]
        state.versions[client] = state.round
        pick = client not in state.picked and len(state.picks) < state.quota
        if pick:
            state.picks[client] = None
        if pick or state.round == 0:
            self._cache(state, client, event.local, event.num_examples)  # c_i := y_i
        else:
            state.bypass[client] = event.num_examples
            state.bypassed[client] = event.local
        return Note({"behind": behind, "picked": float(pick)}, event.ticket)

    def _cache(self, state: State, client: int, c: Tensor, n: float) -> None:
        """Set c_i := c with the weight n_i := n."""
        state.total.put(state.caches, client, c, n)
        state.changed = True

    def _evict(self, state: State, client: int) -> None:
        """Treat the client as if it had never reported."""
        if client in state.caches:
            state.total.drop(state.caches, client)
            state.changed = bool(state.caches)  # without caches w stays
        state.versions.pop(client, None)
        state.late.pop(client, None)

    def _end_round(self, state: State) -> list[Action]:
        """Fill missing picks from the bypass, commit the average, and cache the rest of the bypass."""
        state.ending = False
        missing = max(0, state.quota - len(state.picks))
        for client in list(state.bypass)[:missing]:
            state.picks[client] = None
            self._cache(state, client, state.bypassed.pop(client), state.bypass.pop(client))
        counts = {"picks": len(state.picks), "bypassed": len(state.bypass), "at_work": len(state.at_work)}
        note = Note({"round": state.round, **counts})
        actions: list[Action] = [note] if state.round >= 0 else []
        if state.changed:
            assert state.total.total is not None
            # w := sum_i (n_i / n) c_i
            model = torch.div(state.total.total, state.total.weight, out=reusable_memory(state.model))
            Contributions.of(state.layout, state.caches, state.total.weights).write(state.layout, model, state.model)
            state.changed = False
            actions.append(state.publish(model))
        for client, n in state.bypass.items():
            # c_i := y_i, used from the next round on
            self._cache(state, client, state.bypassed.pop(client), n)
        state.bypass.clear()
        state.picked, state.picks = state.picks, {}
        return actions

    def _begin_round(self, state: State, now: float) -> list[Action]:
        """Dispatch to all idle clients, after replacing the models of deprecated ones."""
        if not state.idle and not state.at_work:
            return []  # the next client to appear begins the round
        state.round += 1
        state.quota = sample_size(self.sample, len(state.clients) + len(state.newcomers))
        deprecated = [client for client, v in state.versions.items() if state.round - 1 - v > self.lag]
        for client in deprecated:
            self._force(state, client)
            if client in state.at_work:
                state.late[client] = None
        dispatches = [self._dispatch(state, client) for client in sorted(state.idle)]
        tolerable = sum(state.versions[client] != state.round - 1 for client in state.idle)
        values = {"deprecated": len(deprecated), "synchronised": len(dispatches) - tolerable, "tolerable": tolerable}
        state.idle.clear()
        cap: list[Action] = [] if self.cap is None else [SetTimer(ROUND, now + self.cap)]
        return [Note(values), *cap, *dispatches]

    def _dispatch(self, state: State, client: int) -> Dispatch:
        """Send w to a deprecated client (c_i := w) or an up-to-date one, and c_i to a tolerable one."""
        state.at_work[client] = None
        latest = state.versions.get(client) == state.round - 1
        if client in state.late:
            del state.late[client]
            if not latest:  # w may have changed since
                self._force(state, client)
        elif not latest and client in state.caches:
            return Dispatch(client, state.caches[client], self.work)
        state.versions[client] = state.round - 1
        return Dispatch(client, state.model, self.work)

    def _force(self, state: State, client: int) -> None:
        """Replace the model of a deprecated client by w."""
        state.versions[client] = state.round - 1
        if client in state.caches:
            self._cache(state, client, state.model, state.total.weights[client])  # c_i := w
