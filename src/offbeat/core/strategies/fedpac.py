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
Checked:  tests/strategies/test_fedpac.py (hand-worked, against SLSQP, reduces to FedAvg),
          tests/client/test_features.py, the laws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from offbeat.core.about import About
from offbeat.core.errors import ConfigError, require, unknown
from offbeat.core.parts.absence import Absences, check_evict
from offbeat.core.parts.buffer import Buffer
from offbeat.core.parts.rounds import Round, Rounds
from offbeat.core.parts.simplex import Matrix, simplex_minimum, without_small
from offbeat.core.protocol import (
    Action,
    Commit,
    Dispatch,
    Event,
    LocalJob,
    LocalRule,
    LocalWork,
    Note,
    Phase,
    UpdateArrived,
    World,
)
from offbeat.core.vector import Layout

# ---------------------------------------------------------------- a model in two


@dataclass(frozen=True, slots=True)
class Split:
    """A model cut in two: a body everybody shares, and a head each client has its own of."""

    module: str  # the head's name
    head: tuple[str, ...]  # param slices
    body: tuple[str, ...]
    classes: int  # what leaves the head
    width: int  # what enters it: features

    @staticmethod
    def of(layout: Layout, name: str | None) -> Split:
        params = list(layout.of_kind("param"))
        module = params[-1].name.rpartition(".")[0] if name is None else name
        head = [s for s in params if s.name.startswith(f"{module}.")]
        if name is not None and not head:
            raise unknown("head", name, {s.name.rpartition(".")[0] for s in params} - {""})
        body = tuple(s.name for s in params if not s.name.startswith(f"{module}."))
        if not head or not body:
            what = f"all parameters belong to {module!r}" if head else "this one is a single layer"
            raise ConfigError(
                f"fedpac needs a model with a body and a head, {what}: use a model of at least two layers"
            )
        matrices = [s.shape for s in head if len(s.shape) >= 2]
        require(bool(matrices), f"head = {module!r} has no weight matrix: features enter a linear layer; name the head")
        return Split(module, tuple(s.name for s in head), body, classes=matrices[-1][0], width=prod(matrices[0][1:]))

    def ranges(self, layout: Layout) -> Iterator[tuple[int, int]]:
        return ((s.start, s.stop) for s in layout.of_kind("param") if s.name in self.head)

    def head_of(self, layout: Layout, model: Tensor) -> Tensor:
        return torch.cat([model[a:b] for a, b in self.ranges(layout)])

    def with_head(self, layout: Layout, model: Tensor, head: Tensor) -> Tensor:
        """A copy of the model with this head; statistics of BatchNorm stay those of the model."""
        out, at = model.clone(), 0
        for a, b in self.ranges(layout):
            out[a:b] = head[at : at + b - a]
            at += b - a
        return out


# ---------------------------------------------------------------- the client half


@dataclass(frozen=True)
class HeadThenBody(LocalRule):
    """First the head alone, then the body alone, whose features are pulled to the prototypes of their classes."""

    split: Split
    lam: float
    head_epochs: int
    head_lr: float

    @property
    def head(self) -> str:
        return self.split.module

    def phases(self, work: LocalWork) -> tuple[Phase, ...]:
        head = Phase(epochs=self.head_epochs, lr=self.head_lr, slices=self.split.head)
        return head, Phase(steps=work.steps, epochs=work.epochs, lr=work.lr, slices=self.split.body)

    def begin(self, job: LocalJob) -> dict[str, Tensor]:
        f, y = self._features(job, job.base)  # of the body everybody was sent: h of different clients can be compared
        n = y.shape[-1]
        n_y, mu, rest = class_means(f, y, self.split.classes)
        p = (n_y / n).unsqueeze(-1)
        # V = (sum_y p_y tr E[f f^T | y] - sum_y p_y^2 ||mu_y||^2) / n, where tr E[f f^T | y] = E[||f - mu_y||^2 | y] +
        # ||mu_y||^2: written so, no rounding makes it negative
        v = (rest.square().sum((-1, -2)) / n + (p * (1 - p) * mu.square()).sum((-1, -2))) / n
        return {"h": (p * mu).flatten(-2), "v": v.unsqueeze(-1)}  # h_y = p_y mu_y

    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor:
        if outputs.shape[-1] != self.split.classes:
            given = f"{self.split.classes} values leave the head {self.head!r}, and {outputs.shape[-1]} the model"
            raise ConfigError(f"fedpac: {given}: it is not what comes last; name the head")
        loss = cross_entropy(outputs, y)
        if "prototypes" not in job.extras:  # the first round
            return loss
        f, c, known = features.flatten(1), job.extras["prototypes"][y], job.extras["known"][y].unsqueeze(-1) > 0
        # no parameter of the head moves the features: in its own phase the second term has no gradient
        return loss + self.lam * mse_loss(f, torch.where(known, c, f.detach()))  # CE + lambda MSE(f(x), c_y)

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        n_y, mu, _ = class_means(*self._features(job, local), self.split.classes)
        return {**carry, "means": mu.flatten(-2), "counts": n_y}, {}

    def uploads(self, layout: Layout) -> Mapping[str, int]:
        classes, each = self.split.classes, self.split.classes * self.split.width
        return {"h": each, "v": 1, "means": each, "counts": classes}

    def _features(self, job: LocalJob, model: Tensor) -> tuple[Tensor, Tensor]:
        if job.features is None:
            raise ConfigError("fedpac's clients look at their features: the trainer gives none")
        f, y = job.features(model)
        # one for each example, not one for each of its places
        labels = not y.is_floating_point() and y.dim() == model.dim() < f.dim()
        flat = f.flatten(y.dim()) if labels else f  # as a convolution sees its input, or a head that flattens it
        if not labels or flat.shape != (*y.shape, self.split.width):
            given = f"features {tuple(f.shape)} with labels {tuple(y.shape)} {y.dtype}"
            raise ConfigError(
                f"fedpac: {given}: one vector of {self.split.width} enters the head for each class label; name the head"
            )
        return flat, y


def class_means(f: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """n_y [..., classes], mu_y [..., classes, width], f - mu_y like f; the mean of no examples is zero."""
    of_class = (y.unsqueeze(-1) == torch.arange(classes, device=y.device)).to(f.dtype)
    n_y = of_class.sum(-2)
    mu = of_class.mT @ f / n_y.clamp(min=1).unsqueeze(-1)
    return n_y, mu, f - of_class @ mu


# ---------------------------------------------------------------- whose heads help whom


def weights(h: Matrix, v: Matrix) -> list[Matrix | None]:
    """For each of m clients its weights for the m heads, None where there is no solution. h: [m, classes * width],
    v: [m].
    """
    h = h - h.mean(0)  # only differences count below; what all have in common would leave its rounding in them
    products = h @ h.T
    rows: list[Matrix | None] = []
    for i in range(len(v)):
        # D_i[j, l] = sum_y <h_i - h_j, h_i - h_l>, multiplied out: one matrix product serves all clients
        D = products[i, i] - products[i][:, None] - products[i][None, :] + products
        rows.append(without_small(simplex_minimum(np.diag(v) + D)))
    return rows


# ---------------------------------------------------------------- the server half


@dataclass(slots=True)
class Answer:
    client: int
    ticket: int
    num_examples: int
    head: Tensor
    extras: Mapping[str, Tensor]


@dataclass(slots=True)
class State:
    model: Tensor
    version: int
    layout: Layout
    clients: Mapping[int, int]
    seed: int
    heads: MutableMapping[int, Tensor]
    means: MutableMapping[int, Tensor]  # of each client's classes, at its last answer: [classes, width]
    counts: MutableMapping[int, Tensor]
    prototypes: Tensor | None = None  # c_y of the last round: [classes, width]
    known: Tensor | None = None  # has a class a prototype? [classes], 0 or 1
    rounds: Round = field(default_factory=Round)
    average: Buffer = field(default_factory=Buffer)
    answers: list[Answer] = field(default_factory=list)
    absences: Absences = field(default_factory=Absences)


@dataclass(frozen=True, kw_only=True)
class FedPAC:
    about: ClassVar[About] = About(
        "synchronous", keeps="its head, its class means", uploads="model, class means and feature statistics"
    )

    head: str | None = None  # name of the module that is personal; None: the last one with parameters
    lam: float = 1.0  # how strongly features are pulled to prototypes; 0 leaves out the alignment
    lr: float | None = 0.01  # of the body; None: the training section's
    head_lr: float = 0.1
    head_epochs: int = 1
    combine: bool = True  # False: every client keeps the head it trained
    sample: int | float | None = None  # clients a round: a number, a share of all, or everybody
    deadline: float | None = None  # seconds; a round closes then with whoever answered
    over_select: float = 0.0  # ask (1 + this) times as many, close when `sample` have answered
    evict_after: float | None = None  # seconds a lost client's head and class means are kept; None: for ever
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        require(self.head != "", "head = '': the name of a module, or none for the last one with parameters")
        require(self.lam >= 0, f"lam = {self.lam}: must be 0 or more")
        require(self.lr is None or self.lr > 0, f"lr = {self.lr}: must be positive, or none for the training section's")
        require(self.head_lr > 0, f"head_lr = {self.head_lr}: must be positive")
        require(self.head_epochs >= 1, f"head_epochs = {self.head_epochs}: must be at least 1")
        wrong = f"work.lr = {self.work.lr}: the body is trained with lr = {self.lr}; give one of them"
        require(self.lr is None or self.work.lr in (None, self.lr), wrong)
        check_evict(self.evict_after)
        require(self.work.rule is None, f"fedpac has a client rule of its own: it cannot take {self.work.rule!r}")
        self._rounds()

    def _rounds(self) -> Rounds:
        return Rounds(sample=self.sample, deadline=self.deadline, over_select=self.over_select)

    def init(self, world: World) -> State:
        Split.of(world.layout, self.head)  # a model without a body is refused before anything runs
        heads, means, counts = (world.store(name) for name in ("heads", "means", "counts"))
        return State(world.model, 0, world.layout, world.clients, world.seed, heads, means, counts)

    def on_event(self, state: State, event: Event) -> list[Action]:
        for client in state.absences.hear(
            event, self.evict_after, unless=lambda c: any(a.client == c for a in state.answers)
        ):
            for kept in (state.heads, state.means, state.counts):
                kept.pop(client, None)
        turn = self._rounds().turn(state.rounds, event, state.clients, state.seed)
        actions = turn.actions
        if turn.counts:
            assert isinstance(event, UpdateArrived)
            head = Split.of(state.layout, self.head).head_of(state.layout, event.local)
            state.average.add(state.layout, event.local, float(event.num_examples), event.local)
            state.answers.append(Answer(event.client, event.ticket, event.num_examples, head, event.extras))
        if turn.closes:
            actions = [*self._close(state), *actions]
        return actions + self._dispatches(state, turn.chosen)

    def model_for(self, state: State, client: int) -> Tensor:
        """theta with the client's own head."""
        if client not in state.heads:
            return state.model
        return Split.of(state.layout, self.head).with_head(state.layout, state.model, state.heads[client])

    def _dispatches(self, state: State, clients: list[int]) -> list[Action]:
        if not clients:
            return []
        rule = HeadThenBody(Split.of(state.layout, self.head), self.lam, self.head_epochs, self.head_lr)
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

    def _close(self, state: State) -> list[Action]:
        average, answers, state.average, state.answers = state.average, state.answers, Buffer(), []
        model = average.mean(state.layout, state.model)  # theta := sum_k n_k theta_k / sum_k n_k, and the mean head
        if model is None:
            return []  # nobody answered: keep everything
        state.model = model
        state.version += 1
        self._align(state, answers)
        return [*self._collaborate(state, answers), Commit(model)]

    def _align(self, state: State, answers: list[Answer]) -> None:
        n_y = torch.stack([answer.extras["counts"] for answer in answers]).to(state.model).clamp(min=0)
        mu = torch.stack([answer.extras["means"] for answer in answers]).to(state.model).view(*n_y.shape, -1)
        n_k = torch.tensor([[answer.num_examples] for answer in answers]).to(n_y)
        # nobody counts for more examples than it trained on
        n_y = n_y * (n_k / torch.maximum(n_y.sum(-1, keepdim=True), n_k))
        total = n_y.sum(0)
        c = (n_y.unsqueeze(-1) * mu).sum(0)
        state.prototypes = c / torch.where(total > 0, total, 1.0).unsqueeze(-1)  # c_y = sum_k n_ky mu_ky / sum_k n_ky
        state.known = (total > 0).to(mu.dtype)
        for answer, means, counts in zip(answers, mu, n_y, strict=True):
            state.means[answer.client], state.counts[answer.client] = means.clone(), counts.clone()

    def _collaborate(self, state: State, answers: list[Answer]) -> list[Action]:
        """phi_i := sum_j alpha_ij phi_j; without a solution, or without `combine`, the client's own."""
        h, v = (torch.stack([a.extras[name] for a in answers]).to("cpu", torch.float64).numpy() for name in ("h", "v"))
        own = list(np.eye(len(answers)))
        solved = weights(h, v[:, 0]) if self.combine else own
        alpha = np.stack([own[i] if row is None else row for i, row in enumerate(solved)])
        phi = torch.stack([answer.head for answer in answers])
        heads = torch.from_numpy(alpha).to(phi) @ phi
        for answer, head in zip(answers, heads, strict=True):
            state.heads[answer.client] = head.clone()
        notes: list[Action] = [
            Note(
                {
                    "own_weight": float(row[i]),
                    "helpers": float((row > 0).sum() - (row[i] > 0)),
                    "variance": float(v[i, 0]),
                },
                answer.ticket,
            )
            for i, (answer, row) in enumerate(zip(answers, alpha, strict=True))
        ]
        assert state.known is not None
        return [
            *notes,
            Note({"prototypes": float(state.known.sum()), "unsolved": float(sum(row is None for row in solved))}),
        ]
