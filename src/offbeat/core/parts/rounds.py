"""Synchronous rounds: sample, wait, close. A synchronous method is one more strategy on the same clock.

A round opens when an instant is over (a timer set for `now`), so that whoever is idle then has the same chance: the
slowest client of the last round too. It closes when each of its clients is heard or lost, when enough of an
over-selected sample are heard, or at its deadline. Whoever comes after that is rejected and offered work again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

import torch

from offbeat.core.draws import sample
from offbeat.core.parts.large_vectors import distance
from offbeat.core.parts.selection import Sample, sample_size
from offbeat.core.parts.server_optimizers import Moments, ServerOptimizer
from offbeat.core.parts.server_state import ServerState
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import (
    Action,
    CancelTimer,
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
)
from offbeat.core.settings import Amount, Seconds, check

OPEN, DEADLINE = "round", "deadline"


@dataclass(slots=True)
class Round:
    """State of the rounds; part of a strategy's state."""

    newcomers: dict[int, None] = field(default_factory=dict)  # clients that were not in World.clients
    idle: dict[int, None] = field(default_factory=dict)
    waiting: dict[int, None] = field(default_factory=dict)  # members of the open round not heard yet
    wanted: int = 0  # answers that close the open round
    heard: int = 0
    number: int = 0  # rounds opened so far

    @property
    def is_open(self) -> bool:
        return bool(self.wanted)


@dataclass(frozen=True, slots=True)
class RoundTurn:
    """What an event means for the rounds."""

    actions: list[Action] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)  # dispatch to these: a round opens
    counts: bool = False  # this update belongs to the open round
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Rounds:
    sample: Sample = None
    deadline: Seconds | None = None  # after the round opened
    over_select: Amount = 0.0  # sample (1 + this) times as many, close when `sample` are heard
    key: str = ""  # where several rounds go on side by side: tells their timers and draws apart

    def __post_init__(self) -> None:
        check(self)

    def turn(self, rounds: Round, event: Event, clients: Mapping[int, object], seed: int) -> RoundTurn:
        """Book the event; `clients` are those known at the start."""
        match event:
            case ClientReady():
                rounds.idle[event.client] = None
                if event.client not in clients:
                    rounds.newcomers[event.client] = None
                return RoundTurn(actions=[] if rounds.is_open else [SetTimer(OPEN + self.key, event.now)])
            case UpdateArrived() if event.client in rounds.waiting:
                del rounds.waiting[event.client]
                rounds.heard += 1
                return self._maybe_close(rounds, event.now, counts=True)
            case UpdateArrived():
                return RoundTurn(actions=[Reject(event.client, event.ticket, "its round has closed")])
            case ClientLost(ticket=None):
                rounds.idle.pop(event.client, None)
            case ClientLost() if event.client in rounds.waiting:
                del rounds.waiting[event.client]
                return self._maybe_close(rounds, event.now, counts=False)
            case TimerFired(key=key) if key == OPEN + self.key and not rounds.is_open and rounds.idle:
                return self._open(rounds, event.now, len(clients) + len(rounds.newcomers), seed)
            case TimerFired(key=key) if key == DEADLINE + self.key and rounds.is_open:
                return self._close(rounds, event.now, counts=False)
        return RoundTurn()

    def take_over(self, rounds: Round, other: Round, now: float) -> list[Action]:
        """The open round of another goes on in this one, or becomes it where none is open."""
        timer: list[Action] = []
        if not rounds.is_open:
            rounds.heard = 0
            timer = [] if self.deadline is None else [SetTimer(DEADLINE + self.key, now + self.deadline)]
        rounds.waiting.update(other.waiting)
        rounds.wanted += other.wanted
        rounds.heard += other.heard
        return timer

    def _open(self, rounds: Round, now: float, known: int, seed: int) -> RoundTurn:
        wanted = sample_size(self.sample, known)
        asked = ceil(wanted * (1 + self.over_select) - 1e-9)
        chosen = sample(list(rounds.idle), asked, seed, "round" + self.key, rounds.number)
        for client in chosen:
            del rounds.idle[client]
            rounds.waiting[client] = None
        rounds.wanted = min(wanted, len(chosen))
        rounds.heard = 0
        rounds.number += 1
        timer: list[Action] = [] if self.deadline is None else [SetTimer(DEADLINE + self.key, now + self.deadline)]
        return RoundTurn(actions=timer, chosen=chosen)

    def _maybe_close(self, rounds: Round, now: float, *, counts: bool) -> RoundTurn:
        if rounds.heard >= rounds.wanted or not rounds.waiting:
            return self._close(rounds, now, counts=counts)
        return RoundTurn(counts=counts)

    def _close(self, rounds: Round, now: float, *, counts: bool) -> RoundTurn:
        rounds.waiting.clear()
        rounds.wanted = 0
        actions: list[Action] = [] if self.deadline is None else [CancelTimer(DEADLINE + self.key)]
        # the last member is ready again within this instant; the next round waits for it
        return RoundTurn(actions=[*actions, SetTimer(OPEN + self.key, now)], counts=counts, closes=True)


@dataclass(slots=True, kw_only=True)
class AveragingState(ServerState):
    """The whole state of such a method."""

    clients: Mapping[int, int]
    rounds: Round = field(default_factory=Round)
    answers: WeightedSum = field(default_factory=WeightedSum)
    memory: Moments = field(default_factory=Moments)  # of the server optimizer


def average_round(
    state: AveragingState, event: Event, rounds: Rounds, work: LocalWork, optimizer: ServerOptimizer | None = None
) -> list[Action]:
    """Answer an event; without an optimizer the mean of a round is the next model, to the last bit."""
    turn = rounds.turn(state.rounds, event, state.clients, state.seed)
    actions = turn.actions
    if turn.counts and isinstance(event, UpdateArrived):
        state.answers.add(state.layout, event.local, float(event.num_examples), event.local)
    if turn.closes:
        actions = [*_close_average(state, optimizer), *actions]
    return actions + [Dispatch(client, state.model, work) for client in turn.chosen]


def _close_average(state: AveragingState, optimizer: ServerOptimizer | None) -> list[Action]:
    answers, state.answers = state.answers, WeightedSum()
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
