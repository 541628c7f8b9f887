"""
Paper:    Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR
          2023.
Follows:  The authors' code (JianXu95/FedPAC: methods/fedpac.py, running.py, tools.py); the text of the paper was not
          available.
Notation: theta, phi -> body, head of the model; f(x) -> features; c_y -> state.prototypes; mu_y, n_y ->
          extras["means"], ["counts"]; h, V -> extras["h"], ["v"]; alpha_i -> a row of `mixture_weights`; lambda -> lam;
          E -> work.epochs.
Deviates: 1. Momentum 0.5 and weight decay 5e-4 of the code belong to the experiment's training section; so does E (the
             code: 5).
          2. The committed model, which is evaluated, is theta with the sample-weighted mean head; model_for returns a
             client's own.
          3. For a class without c_y a client receives its own mean of its last upload, if any; the code uses the mean
             at the start of the job.
          4. c_y is computed anew in each round, as in the code: a class without examples in a round has none.
          5. A client without its own head (a newcomer) starts from the mean head; in the code from the initial one. So
             does a client that was lost for evict_after seconds, whose head and class means are dropped.
          6. The program over the simplex is solved exactly, as non-negative least squares. Its matrix is positive
             semidefinite unless an uploaded V is negative; only then eigenvalues under 0.01 are dropped. Without a
             solution, with a zero matrix or without weights the client keeps its own head.
          7. The loss is cross entropy, whatever the task's; features are computed in evaluation mode; the passes for
             them take no virtual time.
          8. Uploaded n_y are scaled down if their sum exceeds the number of examples the client trained on.
          9. deadline and over_select are additions, as in FedAvg: late updates are rejected and change no head.
Checked:  tests/strategies/test_fedpac.py (hand-worked, against SLSQP, reduces to FedAvg),
          tests/training/test_head_inputs.py, the laws.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.rounds import Round, RoundSettings
from offbeat.core.parts.selection import Sample, ServerState
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import Action, Dispatch, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import Amount, NonNegative, Positive, Seconds, above, least
from offbeat.core.strategies.fedpac.halves import Halves, HeadThenBody
from offbeat.core.strategies.fedpac.simplex import mixture_weights


@dataclass(slots=True)
class Answer:
    """The upload of a client in the open round."""

    client: int
    ticket: int
    head: Tensor
    means: Tensor  # mu_y: [classes, width]
    counts: Tensor  # n_y
    h: Tensor
    v: Tensor


@dataclass(slots=True)
class ClassSums:
    """Sums of class means over the updates of a round, in float32 at least, so that small summands are not lost."""

    means: Tensor | None = None  # sum_k n_ky mu_ky: [classes, width]
    counts: Tensor | None = None  # sum_k n_ky


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    clients: Mapping[int, int]
    heads: MutableMapping[int, Tensor]
    means: MutableMapping[int, Tensor]  # class means of each client's last upload: [classes, width]
    counts: MutableMapping[int, Tensor]
    halves: Halves
    prototypes: Tensor | None = None  # c_y of the last round: [classes, width]
    known: Tensor | None = None  # whether a class has a prototype: [classes], 0 or 1
    rounds: Round = field(default_factory=Round)
    average: WeightedSum = field(default_factory=WeightedSum)
    classes: ClassSums = field(default_factory=ClassSums)
    answers: list[Answer] = field(default_factory=list)
    absences: Absences = field(default_factory=Absences)


BodyRate = Annotated[float | None, above(0, "must be positive, or none for the training section's")]


@dataclass(frozen=True, kw_only=True)
class FedPAC(RoundSettings):
    about: ClassVar[About] = About(
        "synchronous", keeps="its head, its class means", uploads="model, class means and feature statistics"
    )

    head: str | None = None  # name of the personal module; None: the last one with parameters
    lam: NonNegative = 1.0  # weight of the feature alignment; 0 turns it off
    lr: BodyRate = 0.01  # rate of the body; None: that of the training section
    head_lr: Positive = 0.1  # rate of the phase that trains the head
    head_epochs: Annotated[int, least(1, "must be at least 1")] = 1  # epochs of that phase
    combine: bool = True  # False: each client keeps the head it trained
    sample: Sample = None  # clients per round: a number, a share of all, or all (None)
    deadline: Seconds | None = None  # seconds after which a round closes with the reports it has
    over_select: Amount = 0.0  # sample (1 + over_select) times as many, close after `sample` reports
    # seconds for which a lost client's head and class means are kept; None: the whole run
    evict_after: EvictAfter = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        require(self.head != "", "head = '': give the name of a module, or none for the last one with parameters")
        message = f"work.lr = {self.work.lr}: the body is trained with lr = {self.lr}; give one of them"
        require(self.lr is None or self.work.lr in (None, self.lr), message)
        require(self.work.rule is None, f"fedpac has a client rule of its own: it cannot take {self.work.rule!r}")

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        halves = Halves.of(world.layout, self.head)  # raises an error for a model without a body
        stores = {name: world.store(name) for name in ("heads", "means", "counts")}
        return State.of(world, clients=world.clients, halves=halves, **stores)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Collect the uploads of a round; when it closes, average the bodies and mix the heads."""
        pending = {answer.client for answer in state.answers} if self.evict_after is not None else ()
        for client in state.absences.update(event, self.evict_after, exempt=pending):
            for store in (state.heads, state.means, state.counts):
                store.pop(client, None)
        turn = self._rounds.turn(state.rounds, event, state.clients, state.seed)
        actions = turn.actions
        if turn.counts and isinstance(event, UpdateArrived):
            self._receive(state, event)
        if turn.closes:
            actions = [*self._close_round(state), *actions]
        if not turn.chosen:
            return actions
        rule = HeadThenBody(state.halves, self.lam, self.head_epochs, self.head_lr)
        lr = self.work.lr if self.lr is None else self.lr
        works = [replace(self.work, lr=lr, rule=rule, extras=self._prototypes(state, k)) for k in turn.chosen]
        return actions + [
            Dispatch(k, self.model_for(state, k), work) for k, work in zip(turn.chosen, works, strict=True)
        ]

    def model_for(self, state: State, client: int) -> Tensor:
        """Return theta with the client's own head."""
        if client not in state.heads:
            return state.model
        return state.halves.with_head(state.layout, state.model, state.heads[client])

    def _prototypes(self, state: State, client: int) -> dict[str, Tensor]:
        """Return c_y, or for classes without one the client's own last class mean."""
        if state.prototypes is None or state.known is None or self.lam == 0:
            return {}
        c, known = state.prototypes, state.known
        if client in state.means and not bool(known.all()):
            c = torch.where(known.unsqueeze(-1) > 0, c, state.means[client])
            known = torch.maximum(known, (state.counts[client] > 0).to(known.dtype))
        return {"prototypes": c, "known": known}

    def _receive(self, state: State, event: UpdateArrived) -> None:
        """Add an update to the sums of the round, and keep its upload for the mixture of heads."""
        state.average.add_model(state.layout, event)
        n_y = event.extras["counts"].to(state.model).clamp(min=0)
        n_k = n_y.new_tensor([event.num_examples])
        # at most the number of examples the client trained on
        n_y = n_y * (n_k / torch.maximum(n_y.sum(-1, keepdim=True), n_k))
        # copied, because the memory of an event may be shared
        mu = event.extras["means"].to(state.model, copy=True).view(len(n_y), -1)
        sums, wide = state.classes, torch.promote_types(mu.dtype, torch.float32)
        part = n_y.unsqueeze(-1).to(wide) * mu
        sums.means = part if sums.means is None else sums.means.add_(part)
        sums.counts = n_y.to(wide, copy=True) if sums.counts is None else sums.counts.add_(n_y)
        head = state.halves.head_of(state.layout, event.local)
        state.answers.append(Answer(event.client, event.ticket, head, mu, n_y, event.extras["h"], event.extras["v"]))

    def _close_round(self, state: State) -> list[Action]:
        """Commit the mean of a round, then set its prototypes and the heads of its clients."""
        average, answers, state.average, state.answers = state.average, state.answers, WeightedSum(), []
        model = average.mean(state.layout, state.model)  # theta := sum_k n_k theta_k / sum_k n_k, and the mean head
        if model is None:
            return []  # no reports: keep everything
        commit = state.publish(model)
        self._set_prototypes(state, answers)
        return [*self._mix_heads(state, answers), commit]

    def _set_prototypes(self, state: State, answers: list[Answer]) -> None:
        """Set the prototypes to the weighted mean of the clients' class means."""
        sums, state.classes = state.classes, ClassSums()
        assert sums.means is not None
        assert sums.counts is not None
        known = sums.counts > 0
        # c_y = sum_k n_ky mu_ky / sum_k n_ky
        state.prototypes = sums.means.div_(torch.where(known, sums.counts, 1.0).unsqueeze(-1)).to(state.model.dtype)
        state.known = known.to(state.model.dtype)
        for answer in answers:
            state.means[answer.client], state.counts[answer.client] = answer.means, answer.counts

    def _mix_heads(self, state: State, answers: list[Answer]) -> list[Action]:
        """Set phi_i := sum_j alpha_ij phi_j, or keep the client's head without a solution or without `combine`."""
        v, alpha, unsolved = [float(answer.v) for answer in answers], np.eye(len(answers)), 0
        if self.combine:
            # numpy has no bfloat16
            h = [a.h.to("cpu", torch.promote_types(a.h.dtype, torch.float32)).numpy() for a in answers]
            for i, row in enumerate(mixture_weights(h, np.array(v))):
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
