"""
Paper:    Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR
          2023.
Follows:  the authors' code (JianXu95/FedPAC: methods/fedpac.py, running.py, tools.py); the paper's text was not at
          hand.
Notation: theta, phi -> body, head of the model; f(x) -> features; c_y -> state.prototypes; mu_y, n_y ->
          extras["means"], ["counts"]; h, V -> extras["h"], ["v"]; alpha_i -> a row of `weights`; lambda -> lam; E ->
          work.epochs.
Deviates: 1. momentum 0.5 and weight decay 5e-4 of the code are the experiment's training section; so is E (the code:
             5).
          2. the committed model, which is evaluated, is theta with the sample-weighted mean head; model_for gives a
             client's own.
          3. for a class without c_y the client gets its mean of its last upload back, if any; the code takes it at the
             start of the job.
          4. c_y is made anew in each round, as in the code: a class nobody brought this time has none.
          5. a client without a head of its own (a newcomer) starts from the mean head; the code's from the initial one.
             So does one that was lost for evict_after seconds: head and class means are given up.
          6. the program over the simplex is solved exactly, as non-negative least squares. Its matrix is positive
             semidefinite unless an uploaded V is negative: only then eigenvalues under 0.01 are dropped. No solution, a
             zero matrix or no weight left: own head.
          7. the loss is cross entropy, whatever the task's; features are taken in evaluation mode; passes for them take
             no virtual time.
          8. uploaded n_y are scaled down where they add up to more than the examples the client trained on.
          9. deadline and over_select are ours, as in FedAvg: late answers are rejected and change no head.
Checked:  tests/strategies/test_fedpac.py (hand-worked, against SLSQP, reduces to FedAvg),
          tests/client/test_features.py, the laws.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.rounds import Round, Rounds
from offbeat.core.parts.selection import Sample
from offbeat.core.parts.server_state import ServerState
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import Action, Dispatch, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import Amount, NonNegative, Positive, Seconds, Settings, above, least
from offbeat.core.strategies.fedpac.halves import Halves, HeadThenBody
from offbeat.core.strategies.fedpac.simplex import weights


@dataclass(slots=True)
class Answer:
    client: int
    ticket: int
    head: Tensor
    means: Tensor  # mu_y: [classes, width]
    counts: Tensor  # n_y
    h: Tensor
    v: Tensor


@dataclass(slots=True)
class ClassSums:
    """Of the answers of a round: they are added up as they come, in float32 at least. Half of that would stop growing
    once a client's part is small beside the sum.
    """

    means: Tensor | None = None  # sum_k n_ky mu_ky: [classes, width]
    counts: Tensor | None = None  # sum_k n_ky


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    clients: Mapping[int, int]
    heads: MutableMapping[int, Tensor]
    means: MutableMapping[int, Tensor]  # of each client's classes, at its last answer: [classes, width]
    counts: MutableMapping[int, Tensor]
    halves: Halves
    prototypes: Tensor | None = None  # c_y of the last round: [classes, width]
    known: Tensor | None = None  # has a class a prototype? [classes], 0 or 1
    rounds: Round = field(default_factory=Round)
    average: WeightedSum = field(default_factory=WeightedSum)
    classes: ClassSums = field(default_factory=ClassSums)
    answers: list[Answer] = field(default_factory=list)
    absences: Absences = field(default_factory=Absences)


BodyRate = Annotated[float | None, above(0, "must be positive, or none for the training section's")]


@dataclass(frozen=True, kw_only=True)
class FedPAC(Settings):
    about: ClassVar[About] = About(
        "synchronous", keeps="its head, its class means", uploads="model, class means and feature statistics"
    )

    head: str | None = None  # name of the module that is personal; None: the last one with parameters
    lam: NonNegative = 1.0  # how strongly features are pulled to prototypes; 0 leaves out the alignment
    lr: BodyRate = 0.01  # of the body; None: the training section's
    head_lr: Positive = 0.1  # of the phase that trains the head alone
    head_epochs: Annotated[int, least(1, "must be at least 1")] = 1  # of that phase
    combine: bool = True  # False: every client keeps the head it trained
    sample: Sample = None  # clients a round: a number, a share of all, or everybody
    deadline: Seconds | None = None  # a round closes then with whoever answered
    over_select: Amount = 0.0  # ask (1 + this) times as many, close when `sample` have answered
    evict_after: EvictAfter = None  # seconds a lost client's head and class means are kept; None: for ever
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.head != "", "head = '': the name of a module, or none for the last one with parameters")
        wrong = f"work.lr = {self.work.lr}: the body is trained with lr = {self.lr}; give one of them"
        require(self.lr is None or self.work.lr in (None, self.lr), wrong)
        require(self.work.rule is None, f"fedpac has a client rule of its own: it cannot take {self.work.rule!r}")

    @cached_property
    def _rounds(self) -> Rounds:
        return Rounds(sample=self.sample, deadline=self.deadline, over_select=self.over_select)

    def init(self, world: World) -> State:
        halves = Halves.of(world.layout, self.head)  # a model without a body is refused before anything runs
        stores = {name: world.store(name) for name in ("heads", "means", "counts")}
        return State.of(world, clients=world.clients, halves=halves, **stores)

    def on_event(self, state: State, event: Event) -> list[Action]:
        to_be_used = {answer.client for answer in state.answers} if self.evict_after is not None else set()
        for client in state.absences.update(event, self.evict_after, unless=to_be_used.__contains__):
            for kept in (state.heads, state.means, state.counts):
                kept.pop(client, None)
        turn = self._rounds.turn(state.rounds, event, state.clients, state.seed)
        actions = turn.actions
        if turn.counts and isinstance(event, UpdateArrived):
            self._receive(state, event)
        if turn.closes:
            actions = [*self._close(state), *actions]
        return actions + self._dispatches(state, turn.chosen)

    def model_for(self, state: State, client: int) -> Tensor:
        """theta with the client's own head."""
        if client not in state.heads:
            return state.model
        return state.halves.with_head(state.layout, state.model, state.heads[client])

    def _dispatches(self, state: State, clients: list[int]) -> list[Action]:
        if not clients:
            return []
        rule = HeadThenBody(state.halves, self.lam, self.head_epochs, self.head_lr)
        work = replace(self.work, lr=self.work.lr if self.lr is None else self.lr, rule=rule)
        return [
            Dispatch(k, self.model_for(state, k), replace(work, extras=self._prototypes(state, k))) for k in clients
        ]

    def _prototypes(self, state: State, client: int) -> dict[str, Tensor]:
        """c_y; where there is none, the client's own old class mean."""
        if state.prototypes is None or state.known is None or self.lam == 0:
            return {}
        c, known = state.prototypes, state.known
        if client in state.means and not bool(known.all()):
            c = torch.where(known.unsqueeze(-1) > 0, c, state.means[client])
            known = torch.maximum(known, (state.counts[client] > 0).to(known.dtype))
        return {"prototypes": c, "known": known}

    def _receive(self, state: State, event: UpdateArrived) -> None:
        state.average.add(state.layout, event.local, float(event.num_examples), event.local)
        n_y = event.extras["counts"].to(state.model).clamp(min=0)
        n_k = n_y.new_tensor([event.num_examples])
        # nobody counts for more examples than it trained on
        n_y = n_y * (n_k / torch.maximum(n_y.sum(-1, keepdim=True), n_k))
        # kept, so a copy: memory of an event may be others' too
        mu = event.extras["means"].to(state.model, copy=True).view(len(n_y), -1)
        sums, wide = state.classes, torch.promote_types(mu.dtype, torch.float32)
        part = n_y.unsqueeze(-1).to(wide) * mu
        sums.means = part if sums.means is None else sums.means.add_(part)
        sums.counts = n_y.to(wide, copy=True) if sums.counts is None else sums.counts.add_(n_y)
        head = state.halves.head_of(state.layout, event.local)
        state.answers.append(Answer(event.client, event.ticket, head, mu, n_y, event.extras["h"], event.extras["v"]))

    def _close(self, state: State) -> list[Action]:
        average, answers, state.average, state.answers = state.average, state.answers, WeightedSum(), []
        model = average.mean(state.layout, state.model)  # theta := sum_k n_k theta_k / sum_k n_k, and the mean head
        if model is None:
            return []  # nobody answered: keep everything
        commit = state.publish(model)
        self._align(state, answers)
        return [*self._collaborate(state, answers), commit]

    def _align(self, state: State, answers: list[Answer]) -> None:
        sums, state.classes = state.classes, ClassSums()
        assert sums.means is not None
        assert sums.counts is not None
        known = sums.counts > 0
        # c_y = sum_k n_ky mu_ky / sum_k n_ky
        state.prototypes = sums.means.div_(torch.where(known, sums.counts, 1.0).unsqueeze(-1)).to(state.model.dtype)
        state.known = known.to(state.model.dtype)
        for answer in answers:
            state.means[answer.client], state.counts[answer.client] = answer.means, answer.counts

    def _collaborate(self, state: State, answers: list[Answer]) -> list[Action]:
        """phi_i := sum_j alpha_ij phi_j; without a solution, or without `combine`, the client's own."""
        v, alpha, unsolved = [float(answer.v) for answer in answers], np.eye(len(answers)), 0
        if self.combine:
            # numpy has no bfloat16
            h = [a.h.to("cpu", torch.promote_types(a.h.dtype, torch.float32)).numpy() for a in answers]
            for i, row in enumerate(weights(h, np.array(v))):
                alpha[i] = alpha[i] if row is None else row
                unsolved += row is None
        phi = torch.stack([answer.head for answer in answers])
        heads = torch.from_numpy(alpha).to(phi) @ phi
        for answer, head in zip(answers, heads.unbind(), strict=True):
            state.heads[answer.client] = head.clone()
        notes: list[Action] = []
        for i, (answer, shares) in enumerate(zip(answers, alpha.tolist(), strict=True)):
            helpers = float(sum(share > 0 for share in shares) - (shares[i] > 0))
            notes.append(Note({"own_weight": shares[i], "helpers": helpers, "variance": v[i]}, answer.ticket))
        assert state.known is not None
        return [*notes, Note({"prototypes": float(state.known.sum()), "unsolved": float(unsolved)})]
