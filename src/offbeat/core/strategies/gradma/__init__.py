"""
Paper:    Luo et al., "GradMA: A Gradient-Moments-based Accelerated Federated Learning with Alleviated Catastrophic
          Forgetting", CVPR 2023.
Follows:  The authors' code (worker and server corrections); the text of the paper was not available.
Notation: x -> job.start; w -> w; g' , g^x , e -> the first three rows of G; g~ -> what Corrected.direction returns;
          gamma_l, gamma_g -> lr_local, lr_global; beta_1, beta_2 -> beta1, beta2; D_i -> state.deltas[i]; m~ ->
          state.momentum; c(i) -> state.chosen[i].
Deviates: 1. Both programs are solved exactly, up to the rounding of Gram matrices (nnqp.py); the code uses an
             interior-point method. Rows of zeros, and rows so short that their square underflows, are left out;
             otherwise the length of a row does not matter. Without a solution the vector is not corrected.
          2. rho is a margin, <x~, row> >= rho ||x|| ||row||, as in the code; both halves share one rho, the code has
             two.
          3. A round consists of the clients that reported: acc is normalized over them, and a round without reports
             changes nothing, decay included.
          4. A client enters the memory when its delta arrives, unless the memory is full of clients of this round (the
             code crashes). Lost clients stay in it, or leave it after evict_after seconds; their effect on m~ stays.
          5. Weight decay and momentum of the training section act on g~; the code decays before the correction and has
             no local momentum.
          6. By default all clients take part (sample=None); the code samples 10 of 100 and takes 5 steps on batches of
             64.
          7. worker=False, server=False are the code's GradMA-S and GradMA-W, the latter without server momentum as in
             the code. The code keeps the previous iterate between jobs; here every job starts without one.
          8. Only the gradient at w updates the statistics of BatchNorm. They are averaged by examples, counters take
             the maximum, and neither is part of a program.
Checked:  tests/strategies/test_gradma.py (hand-worked, both halves), test_nnqp.py, test_reductions.py (FedAvg and
          FedAvgM), the laws.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import hypot, isfinite
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts.client_records import Absences, EvictAfter
from offbeat.core.parts.rounds import Round, RoundSettings
from offbeat.core.parts.selection import Sample, ServerState
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import Action, Event, Gradient, LocalJob, LocalRule, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import WHOLE, BelowOne, Must, Rate, Seconds, UpToOne, least
from offbeat.core.strategies.gradma.nnqp import compute_gram, find_conflicts, solve_each, solve_three
from offbeat.core.vector import MIN_PIECE, Layout, distance, reusable_memory, split_together

LocalRate = Annotated[
    float | None,
    Must("must be positive and finite, or none for the training section's", lambda lr: lr > 0 and isfinite(lr)),
]


def _sizes(layout: Layout) -> list[int]:
    """Return the sizes of the parameter tensors, each of which has its own program."""
    return [s.stop - s.start for s in layout.of_kind("param")]


@dataclass(frozen=True)
class Corrected(LocalRule):
    """Correct gradients that conflict with the previous one, with that at the base, or lead away from the base."""

    cost: ClassVar[float] = 3.0
    rho: float = 0.0

    def begin(self, job: LocalJob) -> Tensor:
        return job.start  # before the first step the previous iterate is x: g' = g = g^x, e = 0, and g~ = g

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Tensor) -> tuple[Tensor, Tensor]:
        g = grad(w)  # first: only this evaluation updates the statistics of BatchNorm
        rows = torch.stack([grad(carry), grad(job.start), w - job.start, g], dim=-2)  # g', g^x, e = w - x; and g
        tensors = rows.split_with_sizes(_sizes(job.layout), dim=-1)
        grams = torch.stack([G @ G.mT for G in tensors], dim=-3)
        z = solve_three(grams, self.rho)  # min_{z >= 0} 1/2 z^T GG^T z + z^T G g, in every tensor
        moves = [z_l.unsqueeze(-2) @ G[..., :3, :] for z_l, G in zip(z.unbind(-2), tensors, strict=True)]
        return g + torch.cat(moves, dim=-1).squeeze(-2), w.clone()  # g~ = g + G^T z; w is moved in place


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    clients: Mapping[int, int]
    deltas: MutableMapping[int, Tensor]  # D_i, params only; missing ones are 0
    rounds: Round = field(default_factory=Round)
    members: dict[int, None] = field(default_factory=dict)  # of the last round opened
    chosen: dict[int, int] = field(default_factory=dict)  # the memory: client -> number of its rounds since it entered
    answers: WeightedSum = field(default_factory=WeightedSum)
    momentum: Tensor | None = None  # m~, params only; None: 0
    absences: Absences = field(default_factory=Absences)


@dataclass(frozen=True, kw_only=True)
class GradMA(RoundSettings):
    about: ClassVar[About] = About("synchronous", keeps="a decayed sum of its deltas (beta2 > 0)", uploads="model")

    beta1: BelowOne = 0.9  # momentum
    beta2: UpToOne = 0.0  # share of a remembered delta that is kept per round
    lr_global: Rate = 1.0  # gamma_g
    lr_local: LocalRate = 0.01  # gamma_l; None: the training section's
    memory_num: Annotated[int, WHOLE, least(0, "must be 0 or more")] = 100  # number of clients in the memory
    rho: BelowOne = 0.0  # least cosine with a row after a correction, as a share of ||x|| / ||x~||
    worker: bool = True  # False: GradMA-S, plain local steps
    server: bool = True  # False: GradMA-W, no momentum and no memory
    evict_after: EvictAfter = None  # seconds for which a lost client is remembered; None: until others need its place
    sample: Sample = None
    deadline: Seconds | None = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        lr = self.lr_local
        message = f"work.lr = {self.work.lr}: clients train with lr_local = {lr}; give one of them"
        require(lr is None or self.work.lr in (None, lr), message)
        require(self.work.rule is None, f"work.rule = {self.work.rule!r}: gradma's clients have a rule of their own")

    @cached_property
    def _work(self) -> LocalWork:
        """The work with the rate and the rule of the method."""
        rule = Corrected(rho=self.rho) if self.worker else None
        return replace(self.work, lr=self.work.lr if self.lr_local is None else self.lr_local, rule=rule)

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State.of(world, clients=world.clients, deltas=world.store("deltas"))

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Collect the deltas of a round; when it closes, step along the corrected momentum."""
        for client in state.absences.update(event, self.evict_after, exempt=state.members):
            self._forget(state, client)
        turn = self._rounds.turn(state.rounds, event, state.clients, state.seed)
        actions = turn.actions
        if turn.counts and isinstance(event, UpdateArrived):
            self._receive(state, event)
        if turn.closes:
            actions = [*self._close_round(state), *actions]
        if turn.chosen:
            state.members = dict.fromkeys(turn.chosen)
            for client in turn.chosen:
                if client in state.chosen:
                    state.chosen[client] += 1
        return actions + state.dispatch(turn.chosen, self._work)

    def _receive(self, state: State, event: UpdateArrived) -> None:
        """Add the delta of an update to the round, and to the memory if the client is in it."""
        w, y_k = state.layout.trainable(event.base), state.layout.trainable(event.local)
        delta = torch.sub(w, y_k, out=reusable_memory(w))  # descent: w - y_k
        state.answers.add(state.layout, delta, float(event.num_examples), event.local)
        if self.server and self._remembers(state, event.client):
            D_i = state.deltas.get(event.client)
            # D_i := D_i + (w - y_i)
            state.deltas[event.client] = delta if D_i is None else torch.add(D_i, delta, out=reusable_memory(D_i))

    def _remembers(self, state: State, client: int) -> bool:
        """Return whether the client is in the memory, after adding it if possible."""
        if client in state.chosen:
            return True
        if len(state.chosen) >= self.memory_num:
            others = [other for other in state.chosen if other not in state.members]
            if not others:
                return False
            # evict the least often chosen client, the longest remembered among equals
            self._forget(state, min(others, key=state.chosen.__getitem__))
        state.chosen[client] = 1
        return True

    def _forget(self, state: State, client: int) -> None:
        """Remove a client and its delta from the memory."""
        state.chosen.pop(client, None)
        state.deltas.pop(client, None)

    def _close_round(self, state: State) -> list[Action]:
        """Commit the step along the momentum, corrected with the deltas of the remembered clients."""
        answers, state.answers = state.answers, WeightedSum()
        if answers.total is None:
            return []  # no reports: keep everything
        actions: list[Action] = []
        step, carried = answers.total, [] if state.momentum is None else [state.momentum]
        for m, *m_tilde in split_together(step, *carried):
            m.div_(answers.weight)  # acc = sum_k n_k (w - y_k) / sum_k n_k
            if m_tilde:
                m.add_(m_tilde[0], alpha=self.beta1)  # m := beta_1 m~ + acc
        if self.server:
            actions.append(self._correct(state, step))
            state.momentum = step  # the corrected momentum is kept
            self._decay(state)
        w = state.layout.trainable(state.model)
        model = torch.sub(w, step, alpha=self.lr_global, out=reusable_memory(w))  # w := w - gamma_g m~
        if not state.layout.params_only:
            model = state.layout.with_trainable(state.model, model)
        answers.statistics.write(state.layout, model, state.model)
        return [*actions, state.publish(model)]

    def _correct(self, state: State, m: Tensor) -> Note:
        """Replace m by m~, the nearest vector that conflicts in no tensor with the delta of a remembered client."""
        rows, length = [state.deltas[client] for client in state.deltas], float(torch.linalg.vector_norm(m))
        places = [slice(start, stop) for start, stop in pairwise(accumulate(_sizes(state.layout), initial=0))]
        tensors = find_conflicts(rows, m, places, self.rho) if rows else []
        grams = [compute_gram((*rows, m), here.start, here.stop) for here in tensors]
        # min_{z >= 0} 1/2 z^T DD^T z + z^T D m, in every tensor; without a solution m as it is
        solved = solve_each(torch.stack(grams), self.rho) if tensors else []
        active = [
            (here, D_i, z_i)
            for here, z in zip(tensors, solved, strict=True)
            if z is not None
            for D_i, z_i in zip(rows, z.tolist(), strict=True)
            if z_i > 0
        ]
        pieces = torch.split(m, MIN_PIECE)  # ||m~ - m|| is computed only where they differ
        touched = sorted({n for here, *_ in active for n in range(here.start // MIN_PIECE, -(-here.stop // MIN_PIECE))})
        before = [pieces[n].clone() for n in touched]
        for here, D_i, z_i in active:
            m[here].add_(D_i[here], alpha=z_i)  # m~ = m + D^T z
        moved = hypot(*(distance(pieces[n], was) for n, was in zip(touched, before, strict=True)))
        corrected, failures = len({here.start for here, *_ in active}), sum(z is None for z in solved)
        share = moved / length if length > 0 else 0.0
        return Note({"rows": len(rows), "corrected": corrected, "correction": share, "failures": failures})

    def _decay(self, state: State) -> None:
        """Multiply all remembered deltas by beta_2."""
        if self.beta2 == 0:
            state.deltas.clear()  # rows of zeros have no effect
        elif self.beta2 < 1:
            for client in list(state.deltas):
                D_i = state.deltas[client]
                state.deltas[client] = torch.mul(D_i, self.beta2, out=reusable_memory(D_i))  # D_i := beta_2 D_i
