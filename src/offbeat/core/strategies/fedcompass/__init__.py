"""
Paper:    Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices Using a
          Computing Power-Aware Scheduler", ICLR 2024.
Follows:  Algorithm 1 (server and client), Algorithm 3 (GROUPAGGREGATE); Algorithm 2 (ASSIGNGROUP) is in compass.py. +M
          and +N (server momentum, normalized steps) are named in section 3 and follow the authors' code.
Notation: Q_min, Q_max -> q_min, q_max; lambda -> latest; st(u) = alpha (u + 1)^-a -> alpha, a; p_i -> weights; mu ->
          mu; tau_g -> version; C[i].tau -> base_version; Delta_i -> -delta; G[g] -> schedule.groups; Delta-bar_g,
          Delta-bar -> group_buffers, general.
Deviates: 1. A late client is not added to the arrived clients (Algorithm 1, line 14 does), because its group could
             dispatch to it twice.
          2. A group ends before its members are assigned again (the paper deletes it afterwards), so that no client can
             join it any more.
          3. A timer that finds no update in its group changes nothing; the general buffer waits for the next group.
          4. Not in the paper: the group stops waiting for a lost member; the update of a client that leaves while it
             waits still counts.
          5. floor and the test for late updates allow 1e-9 for rounding. S is the duration of a job, including
             transfers, divided by the steps assigned. Live it is the training time that a site reports with its update,
             or the round trip if it reports none.
          6. Statistics are the mean over group and general buffer, weighted like the deltas (st p) and mixed in with
             omega = the sum of those weights, at most 1, so that a group of one is FedAsync's delta form here too.
             statistics="replace" is the authors' way: those of a first arrival replace the server's, a group and the
             general buffer use a plain mean (counters still take the maximum).
          7. flush_on_stop (off by default) ends a run with one last group of all waiting updates. The authors'
             update_all does the same without the general buffer, which is lost there. concurrency and max_staleness are
             additions.
          8. The members of a finished group are assigned together when the last one to arrive is ready: fastest first,
             including the last.
          9. The authors' code differs from the paper: speed="average", weights="equal", create="latest",
             discount="aggregation".
Checked:  tests/strategies/test_fedcompass.py (Figure 1, hand-worked sums), test_compass.py (properties of
          the schedule), the laws; q_min = q_max reduces to FedAsync's delta form. Appendix B's bound on groups is
          exceeded once speeds spread wider than steps (docs/strategies/fedcompass.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts import buffer_statistics
from offbeat.core.parts.buffer_statistics import Contributions, Statistics
from offbeat.core.parts.client_records import ClientExampleCounts, ClientWeight
from offbeat.core.parts.selection import Concurrency, Seated, next_clients
from offbeat.core.parts.server_optimizers import Moments, Momentum, PlainStep
from offbeat.core.parts.staleness import MaxStaleness, Polynomial, reject_if_too_old
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import Action, ClientReady, Dispatch, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import BelowOne, Exponent, Settings, Share
from offbeat.core.strategies.fedcompass.compass import Compass, Create, Schedule, ScheduleTurn, Speed, fastest_first
from offbeat.core.vector import reusable_memory


@dataclass(slots=True)
class GroupBuffer:
    """Updates that wait for aggregation: sums of st p delta (+N: st p delta / Q), and the sums for Q_eff."""

    # with discount="aggregation" one sum per base version, otherwise a single one
    sums: dict[int, WeightedSum] = field(default_factory=dict)
    p: float = 0.0  # sum of p_i
    pq: float = 0.0  # sum of p_i Q_i
    count: int = 0


@dataclass(slots=True, kw_only=True)
class State(Seated):
    census: ClientExampleCounts
    schedule: Schedule = field(default_factory=Schedule)
    group_buffers: dict[int, GroupBuffer] = field(default_factory=dict)  # group -> its buffer
    general: GroupBuffer = field(default_factory=GroupBuffer)  # late updates, aggregated with the next group
    momentum: Moments = field(default_factory=Moments)


@dataclass(frozen=True, kw_only=True)
class FedCompass(Settings):
    about: ClassVar[About] = About("semi-asynchronous", keeps="nothing", uploads="model")

    q_min: int = 20  # fewest local steps, also those of every first job
    q_max: int = 100  # most local steps
    latest: float = 1.2  # lambda: a group waits at most this many times as long as expected
    alpha: Share = 0.9  # weight of a fresh update
    a: Exponent = 0.5  # exponent of the staleness discount
    mu: BelowOne = 0.9  # server momentum, with momentum=True
    momentum: bool = False  # +M
    normalized: bool = False  # +N
    weights: ClientWeight = "examples"  # p_i = n_i / n, or 1 / m
    speed: Speed = "replace"  # "average": 0.1 old + 0.9 new, as in the authors' code
    # a new group is placed after the T_a of an open one; "latest": after its T_max, as in the authors' code
    create: Create = "expected"
    # time at which st(u) is computed; the authors' newer code: at aggregation
    discount: Literal["arrival", "aggregation"] = "arrival"
    # BatchNorm statistics are mixed with the weights of the deltas, or replaced by the plain mean of the contributors
    statistics: Statistics = "mix"
    flush_on_stop: bool = False  # apply waiting updates when the run ends
    max_staleness: MaxStaleness = None
    concurrency: Concurrency = None  # clients beyond the limit are in no group
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        amount = self.work.steps or self.work.epochs
        message = f"work: {amount} steps or epochs: the scheduler sets the steps, between q_min and q_max"
        require(amount is None, message)
        _ = self._compass  # validates its settings

    @cached_property
    def _compass(self) -> Compass:
        """The scheduler with the settings of this strategy."""
        return Compass(q_min=self.q_min, q_max=self.q_max, latest=self.latest, speed=self.speed, create=self.create)

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State.of(world, census=ClientExampleCounts.of(world.clients, self.weights))

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Pass the event to the scheduler, and aggregate the group that it closes."""
        state.census.update(event, self.weights)
        turn = self._compass.turn(state.schedule, event)
        actions: list[Action] = list(turn.timers)
        if isinstance(event, UpdateArrived):
            actions += self._collect(state, event, turn)
        if turn.closed is not None and (group := state.group_buffers.pop(turn.closed, None)) is not None:
            actions += self._aggregate(state, turn.closed, [group])
        return actions + self._serve(state, event, turn.ready)

    def _collect(self, state: State, event: UpdateArrived, turn: ScheduleTurn) -> list[Action]:
        """Apply the first update of a client at once; add others to the buffer of their group or the general one."""
        u = state.version - event.base_version
        if refused := reject_if_too_old(event, u, self.max_staleness):
            return refused
        p = state.census.weight(event.client, self.weights)  # over all known clients, not renormalized within a group
        st, speed = self._st(u), state.schedule.speeds[event.client]
        place = {"group": float(turn.group or 0), "late": float(turn.place == "late"), "steps": float(turn.steps)}
        note = Note({"staleness": float(u), "weight": st * p, "seconds_per_step": speed, **place}, event.ticket)
        delta = torch.sub(event.local, event.base, out=reusable_memory(event.local))
        if turn.place == "first" or turn.group is None:
            model = delta.mul_(st * p).add_(state.model)  # w := w - st(u) p_i Delta_i
            omega = st * p if self.statistics == "mix" else 1.0
            buffer_statistics.mix(state.layout, model, state.model, event.local, omega)
            return [note, state.publish(model)]
        buffer = state.general if turn.place == "late" else state.group_buffers.setdefault(turn.group, GroupBuffer())
        if self.normalized:
            delta.div_(turn.steps)
        key, weight = (0, st * p) if self.discount == "arrival" else (event.base_version, p)
        # Delta-bar_g := Delta-bar_g + st(u) p_i Delta_i; for late updates Delta-bar
        share = weight if self.statistics == "mix" else 1.0
        buffer.sums.setdefault(key, WeightedSum()).add(state.layout, delta, weight, event.local, share)
        buffer.p += p
        buffer.pq += p * turn.steps
        buffer.count += 1
        return [note]

    def _st(self, u: int) -> float:
        """Return the weight of an update with staleness u."""
        return self.alpha * Polynomial(a=self.a)(u)  # st(u) = alpha (u + 1)^-a

    def finish(self, state: State, now: float) -> list[Action]:
        """Apply all waiting updates as one last group with number 0, with `flush_on_stop`."""
        if not self.flush_on_stop or not (state.group_buffers or state.general.count):
            return []
        groups, state.group_buffers = list(state.group_buffers.values()), {}
        return self._aggregate(state, 0, groups)

    def _aggregate(self, state: State, number: int, groups: list[GroupBuffer]) -> list[Action]:
        """Run GROUPAGGREGATE without the new assignments: apply these buffers and the general one to w."""
        late, state.general = state.general, GroupBuffer()
        values, omega = Contributions(), 0.0
        d: Tensor | None = None
        for base_version, part in (entry for buffer in (*groups, late) for entry in buffer.sums.items()):
            assert part.total is not None
            st = 1.0 if self.discount == "arrival" else self._st(state.version - base_version)
            # Delta-bar_g + Delta-bar, in the memory of the first buffer
            d = part.total.mul_(st) if d is None else d.add_(part.total, alpha=st)
            omega += st * part.weight  # for a group of one, the weight of FedAsync's delta form
            if part.statistics.mean is not None:
                share = st if self.statistics == "mix" else 1.0
                values.add(state.layout, part.statistics.mean, share * part.statistics.weight)
        p, pq = sum(buffer.p for buffer in groups) + late.p, sum(buffer.pq for buffer in groups) + late.pq
        q_eff = pq / p if p > 0 else 0.0  # Q_eff = sum p_i Q_i / sum p_i
        assert d is not None
        if self.normalized:
            d.mul_(q_eff)
        optimizer = Momentum(mu=self.mu) if self.momentum else PlainStep()  # m := mu m + d
        model = optimizer.step(state.momentum, state.model, d)  # w := w - (Delta-bar_g + Delta-bar); +M: w - m
        values.write(state.layout, model, state.model, omega if self.statistics == "mix" else 1.0)
        updates, still_open = sum(buffer.count for buffer in groups), len(state.schedule.groups)
        counts = {"group": number, "updates": updates, "late_updates": late.count, "omega": omega, "q_eff": q_eff}
        note = Note({name: float(value) for name, value in {**counts, "open_groups": still_open}.items()})
        return [state.publish(model), note]

    def _serve(self, state: State, event: Event, ready: list[int]) -> list[Action]:
        """Assign groups and steps to the clients that can take work, and dispatch to them."""
        chosen: list[int] = []
        actions: list[Action] = []
        # for the limit on clients in flight, a client that waits for its group becomes ready when the group releases it
        others = [ClientReady(event.now, client, 0) for client in ready]
        for ready_event in others if isinstance(event, ClientReady) else [event, *others]:
            clients, timers = next_clients(state.seats, ready_event, self.concurrency, state.seed)
            chosen += clients
            actions += timers
        for client in fastest_first(state.schedule, chosen):
            task = self._compass.assign(state.schedule, client, event.now)
            actions += [*task.timers, Dispatch(client, state.model, replace(self.work, steps=task.steps))]
        return actions
