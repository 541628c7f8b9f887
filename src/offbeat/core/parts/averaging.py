"""Rounds that end in an average: what FedAvg, FedProx, FedAvgM and FedAdam share on the server.

The answers of a round are averaged by their examples. That mean is the next model, or a server optimizer is shown the
way to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from offbeat.core.parts.rounds import Round, Rounds
from offbeat.core.parts.server_optimizers import Moments, ServerOptimizer
from offbeat.core.parts.server_state import ServerState
from offbeat.core.parts.vector_blocks import distance
from offbeat.core.parts.weighted_sum import Buffer
from offbeat.core.protocol import Action, Dispatch, Event, LocalWork, Note, UpdateArrived


@dataclass(slots=True, kw_only=True)
class Averaging(ServerState):
    """The whole state of such a method."""

    clients: Mapping[int, int]
    rounds: Round = field(default_factory=Round)
    answers: Buffer = field(default_factory=Buffer)
    memory: Moments = field(default_factory=Moments)  # of the server optimizer


def average(
    state: Averaging, event: Event, rounds: Rounds, work: LocalWork, optimizer: ServerOptimizer | None = None
) -> list[Action]:
    """Answer an event; without an optimizer the mean of a round is the next model, to the last bit."""
    turn = rounds.turn(state.rounds, event, state.clients, state.seed)
    actions = turn.actions
    if turn.counts and isinstance(event, UpdateArrived):
        state.answers.add(state.layout, event.local, float(event.num_examples), event.local)
    if turn.closes:
        actions = [*_close(state, optimizer), *actions]
    return actions + [Dispatch(client, state.model, work) for client in turn.chosen]


def _close(state: Averaging, optimizer: ServerOptimizer | None) -> list[Action]:
    answers, state.answers = state.answers, Buffer()
    if answers.total is None:
        return []  # nobody answered: keep w, and whatever the optimizer remembers
    w, model = state.model, answers.total.div_(answers.weight)  # sum_k n_k w_k / sum_k n_k, in the memory of the sum
    notes: list[Action] = []
    if optimizer is not None:
        d = model.sub_(w)
        model = optimizer.step(state.memory, w, d)
        length = float(torch.linalg.vector_norm(state.layout.trainable(d)))
        notes = [Note({"d": length, "step": distance(state.layout.trainable(model), state.layout.trainable(w))})]
    answers.statistics.write(state.layout, model, w)  # averaged, whatever the optimizer made of them
    return [state.publish(model), *notes]
