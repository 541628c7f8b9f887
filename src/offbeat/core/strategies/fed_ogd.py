"""
Paper:    Li, Shen, Liu, Ding, Shen, "Fed-OGD: Mitigating Straggler Effects in Federated Learning via Orthogonal
          Gradient Descent", IEEE Transactions on Computers 2025.
Follows:  Algorithm 1; eq. 3 (bases), eq. 4 (conditional projection), the membership example and the privacy variant of
          III-B.
Notation: eta_l -> lr_local; eta_g -> lr_global; Delta w_k -> G, kept in state.caches; M_i, b_i -> state.active, b_act
          and b_str (the paper swaps its indices); K -> n, all clients known so far; t -> state.epochs.tick.
Deviates: 1. G = (base - local) / eta_l: with the printed sign the server would ascend, and eq. 4 would project where
             both sides agree.
          2. The step is the mean over all n caches, as in the proof; combine="sum_of_means" is the printed b_1 + b_2.
          3. An epoch is a period of time (see parts.epochs): reports wait for its end. Without reports the step on the
             caches is repeated. epoch=None uses the low median of the first jobs, known when half of them are back.
          4. Active clients: the last report took at most one epoch, and the client has not missed a tick, been lost or
             left since. All others are stragglers. Caches of lost clients are kept, or dropped after evict_after
             seconds; a missing cache counts as 0.
          5. A group without caches has basis 0, on which nothing is projected (the official code crashes).
          6. upload="difference" divides by |M_i|, which the paper omits, and fixes the groups. First uploads are
             complete gradients.
          7. Statistics are the mean of the existing caches. With differences they are the mean of the reports, mixed in
             by their share of all clients that ever reported.
          8. The official code always projects, and without a basis; project="always" is the ablation "traditional
             OGD".
          9. Local training follows the experiment except for the rate, which the strategy sets because G is divided by
             it: training.lr and its decay have no effect.
          10. Staleness is not limited: the method is to keep old gradients.
Checked:  tests/strategies/test_fed_ogd.py (spec vectors, every variant, zero bases reduce to MIFA's cache), the laws.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts.buffer_statistics import Contributions, copy_client_statistics
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.epochs import Epochs
from offbeat.core.parts.selection import Concurrency, ServerState
from offbeat.core.parts.vector_sums import RunningSum
from offbeat.core.protocol import (
    Action,
    ClientLost,
    ClientReady,
    Dispatch,
    Event,
    Gradient,
    LocalJob,
    LocalRule,
    LocalWork,
    Note,
    UpdateArrived,
    World,
)
from offbeat.core.settings import Rate, Seconds, Settings
from offbeat.core.vector import Layout, new_vector, reusable_memory

NEGLIGIBLE = 1e-12  # per entry of the squared norm: a shorter basis has no direction


class Carry(NamedTuple):
    """The carry of a job: the basis, and sums over its steps."""

    b: Tensor
    inverse: Tensor  # 1 / ||b||^2, or 0 for a basis without direction
    along: Tensor  # sums over the steps of <g, b> and of its removed part
    steps: Tensor  # per client, because clients of a stack take different numbers of steps


@dataclass(frozen=True)
class Orthogonal(LocalRule):
    """Remove from every gradient, as one vector over the whole model, its component against the basis.

    The upload also contains the means over the job's steps of <g, b> / ||b||, the component along the basis (Figure 6c
    and f), and of its removed part.
    """

    always: bool = False  # also remove components along the basis: "traditional OGD"

    def begin(self, job: LocalJob) -> Carry:
        b = job.extras["basis"]
        squared = torch.linalg.vecdot(b, b).unsqueeze(-1)
        # in float64 only if the inverse of the squared norm overflows
        negligible = max(0.0 if b.dtype == torch.float64 else NEGLIGIBLE * b.shape[-1], 1.0 / torch.finfo(b.dtype).max)
        inverse = torch.where(squared > negligible, 1.0 / squared, 0.0)
        zero = torch.zeros_like(squared)
        return Carry(b, inverse, zero.expand(*squared.shape[:-1], 2), zero)

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Carry) -> tuple[Tensor, Carry]:
        b, inverse, sums, steps = carry
        g = grad(w)
        along = torch.linalg.vecdot(g, b).unsqueeze(-1)  # <g, b>
        away = along if self.always else torch.where(along < 0, along, 0.0)
        carry = Carry(b, inverse, sums + torch.cat([along, away], dim=-1), steps + 1)
        return torch.addcmul(g, away * inverse, b, value=-1), carry  # g~ = g - <g, b> / ||b||^2 b

    def end(self, job: LocalJob, local: Tensor, carry: Carry) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        return {"projected": carry.along * carry.inverse.sqrt() / carry.steps}, {}

    def uploads(self, layout: Layout) -> Mapping[str, int]:
        return {"projected": 2}


@dataclass(frozen=True)
class OrthogonalDifference(Orthogonal):
    """Upload only the change of G since the last upload (the privacy variant)."""

    memory: ClassVar[tuple[str, ...]] = ("previous",)  # G^{t-1}, as the server can reconstruct it

    def end(self, job: LocalJob, local: Tensor, carry: Carry) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Run once after the last step on the complete local vector; return (extras to upload, new memory)."""
        previous = job.memory["previous"]
        G = (job.start - job.layout.trainable(local)) / job.lr
        sent = job.start - job.lr * (G - previous)
        local.copy_(job.layout.with_trainable(local, sent))  # in place: the trained model must not leave the client
        # not G itself: the next upload corrects the rounding of this one, so it cannot accumulate in the server's sum
        extras, _ = super().end(job, local, carry)
        return extras, {"previous": previous + (job.start - sent) / job.lr}


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    clients: Mapping[int, int]  # known at the start
    caches: MutableMapping[int, Tensor]  # client -> G in the params, its values in the statistics
    epochs: Epochs
    newcomers: dict[int, None] = field(default_factory=dict)
    heard: dict[int, None] = field(default_factory=dict)  # clients that ever reported
    active: dict[int, bool] = field(default_factory=dict)  # stragglers are False or missing
    sum_act: RunningSum = field(default_factory=RunningSum)  # of the active clients' G; reports are added at the tick
    sum_str: RunningSum = field(default_factory=RunningSum)
    absences: Absences = field(default_factory=Absences)

    def group_sum(self, client: int) -> RunningSum:
        """Return the sum of the client's group: active clients or stragglers."""
        return self.sum_act if self.active.get(client) else self.sum_str


@dataclass(frozen=True, kw_only=True)
class FedOGD(Settings):
    about: ClassVar[About] = About("semi-asynchronous", keeps="its last gradient", uploads="model")

    lr_local: Rate = 0.01  # eta_l, rate of the clients
    lr_global: Rate = 0.003  # eta_g, rate of the server step
    epoch: Seconds | None = None  # seconds between server steps; None: the median of the first jobs
    cache: bool = True  # False: use only reports of this epoch
    project: Literal["conflict", "always"] = "conflict"  # project gradients that point against the basis, or all
    combine: Literal["mean", "sum_of_means"] = "mean"  # of the two groups of clients
    upload: Literal["gradient", "difference"] = "gradient"  # content of an upload
    evict_after: EvictAfter = None  # seconds for which the cache of a lost client is kept; None: the whole run
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        require(self.cache or self.upload == "gradient", "upload = 'difference' requires cache = True")
        evictable = self.evict_after is None or (self.cache and self.upload == "gradient")
        message = "the server has caches only with cache = True and upload = 'gradient'"
        require(evictable, f"evict_after = {self.evict_after}: {message}")
        require(self.work.rule is None, f"work.rule = {self.work.rule!r}: fed_ogd's clients have a rule of their own")
        message = f"clients train with lr_local = {self.lr_local}, because G = (base - local) / lr_local"
        require(self.work.lr in (None, self.lr_local), f"work.lr = {self.work.lr}: {message}")

    @cached_property
    def _work(self) -> LocalWork:
        """The work with the rate and the rule of the method, without a basis."""
        rule = OrthogonalDifference if self.upload == "difference" else Orthogonal
        return replace(self.work, lr=self.lr_local, rule=rule(always=self.project == "always"))

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        caches, epochs = world.store("gradients"), Epochs(self.epoch or 0.0)
        return State.of(world, clients=world.clients, caches=caches, epochs=epochs)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Cache the gradients that arrive, and step at the ticks of the epochs."""
        actions: list[Action] = []
        for client in state.absences.update(event, self.evict_after, exempt=state.epochs.reports):
            if client in state.caches:
                state.group_sum(client).remove(state.caches.pop(client))  # G_k := 0
        ticks = state.epochs.update(event)
        if isinstance(event, (ClientReady, UpdateArrived)) and event.client not in state.clients:
            state.newcomers[event.client] = None
        match event:
            case UpdateArrived():
                actions = self._receive(state, event)
            case ClientLost() if event.client not in state.epochs.reports:
                self._demote(state, event.client)  # a straggler until it reports
        if ticks and state.epochs.length:
            actions = self._tick(state)
        elif ticks:  # first jobs: the length of an epoch is unknown, reports wait, and bases are 0
            zero = new_vector(state.layout.trainable(state.model)).zero_()
            actions = self._serve(state, zero, zero)
        return actions + state.epochs.timer(event)

    def _receive(self, state: State, event: UpdateArrived) -> list[Action]:
        """Replace the cache of a client; its group's sum gets the new one at the tick."""
        client = event.client
        if client in state.caches:
            state.group_sum(client).remove(state.caches[client])
        # G_k = (w^t - w_k) / eta_l
        G = torch.sub(event.base, event.local, out=reusable_memory(event.local)).div_(self.lr_local)
        copy_client_statistics(state.layout, G, event.local)
        state.caches[client] = G
        state.heard[client] = None
        sums = event.extras.get("projected")  # only noted, so scripted events may omit it
        projected = {} if sums is None else dict(zip(("projected", "removed"), sums.tolist(), strict=True))
        return [Note({"epochs": state.epochs.age(client) or 0, **projected}, event.ticket)]

    def _demote(self, state: State, client: int) -> None:
        """Move an active client and its cache to the stragglers; with differences, the groups are fixed."""
        if self.upload == "difference" or not state.active.get(client):
            return
        if client in state.caches:
            state.sum_act.remove(state.caches[client])
            state.sum_str.add(state.caches[client])
        state.active[client] = False

    def _classify(self, state: State) -> None:
        """Divide the clients into active ones and stragglers, and add the new reports to the sums."""
        for client in state.epochs.at_work:  # sent work at an earlier tick: the job takes more than one epoch
            self._demote(state, client)
            state.active.setdefault(client, False)
        for client in state.epochs.reports:
            if self.upload == "gradient" or client not in state.active:
                state.active[client] = state.epochs.age(client) == 1
            state.group_sum(client).add(state.caches[client])
        for active, running in ((True, state.sum_act), (False, state.sum_str)):
            if running.needs_renewal:
                running.renew(state.caches[client] for client in state.caches if state.active[client] is active)

    def _tick(self, state: State) -> list[Action]:
        """End an epoch: classify the clients, step, and dispatch with the bases of both groups."""
        self._classify(state)
        n_act, n_str = state.sum_act.count, state.sum_str.count
        if self.cache:  # a missing cache counts as 0, its client as a straggler
            n_act = sum(state.active.values())
            n_str = len(state.clients) + len(state.newcomers) - n_act
        b_act = self._basis(state, state.sum_act, n_act)
        b_str = self._basis(state, state.sum_str, n_str)
        cosine = 0.0
        if state.sum_act.total is not None and state.sum_str.total is not None:
            norms = float(torch.linalg.vector_norm(b_act)) * float(torch.linalg.vector_norm(b_str))
            cosine = float(torch.dot(b_act, b_str)) / norms if norms > 0 else 0.0
        counts = {"tick": state.epochs.tick, "reports": len(state.epochs.reports), "active": n_act, "stragglers": n_str}
        actions: list[Action] = [Note({**counts, "cosine": cosine}), *self._step(state, n_act, n_str)]
        if not self.cache:
            state.sum_act, state.sum_str = RunningSum(), RunningSum()
        if not self.cache or self.upload == "difference":
            state.caches.clear()
        return actions + self._serve(state, b_act, b_str)

    def _serve(self, state: State, b_act: Tensor, b_str: Tensor) -> list[Action]:
        """Dispatch to the waiting clients; each group projects on the basis of the other."""
        works = {active: replace(self._work, extras={"basis": b}) for active, b in ((True, b_str), (False, b_act))}
        chosen = state.epochs.serve(self.concurrency, state.seed)
        return [Dispatch(client, state.model, works[state.active.get(client, False)]) for client in chosen]

    def _basis(self, state: State, running: RunningSum, n: int) -> Tensor:
        """Return the mean G of a group of n clients, 0 without caches."""
        w = state.layout.trainable(state.model)
        if running.total is None:
            return new_vector(w).zero_()
        total = state.layout.trainable(running.total)
        return torch.div(total, n, out=reusable_memory(w))  # b_i = 1 / |M_i| sum_{k in M_i} G_k

    def _step(self, state: State, n_act: int, n_str: int) -> list[Action]:
        """Commit the step along the caches of both groups, unless there are none."""
        step: Tensor | None = None
        for running, members in ((state.sum_act, n_act), (state.sum_str, n_str)):
            if running.total is not None:
                # 1/n sum_k G_k, or b_act + b_str
                n = n_act + n_str if self.combine == "mean" else members
                part = torch.div(running.total, n, out=reusable_memory(running.total))
                step = part if step is None else step.add_(part)
        if step is None:
            return []  # no reports yet, or without caches none in this epoch
        # w^{t+1} = w^t - eta_g Delta w^t
        model = torch.sub(state.model, step, alpha=self.lr_global, out=reusable_memory(step))
        statistics = Contributions()
        for client in () if state.layout.params_only else state.caches:
            statistics.add(state.layout, state.caches[client], 1.0)
        share = len(state.epochs.reports) / len(state.heard) if self.upload == "difference" else 1.0
        statistics.write(state.layout, model, state.model, share)
        return [state.publish(model)]
