"""Synchronous rounds: sample clients, wait for their updates, close the round and, for `AveragesRounds`, average.

A round opens at the end of an instant (a timer set for `now`), so that all idle clients have the same chance to be
sampled, including the slowest client of the last round. It closes when all of its clients have reported or were lost,
when enough clients of an over-selected sample have reported, or at its deadline. Later updates are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

from offbeat.core.draws import sample
from offbeat.core.parts.selection import Sample, ServerState, sample_size
from offbeat.core.parts.server_optimizers import Moments, ServerOptimizer
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import (
    Action,
    CancelTimer,
    ClientLost,
    ClientReady,
    Event,
    LocalWork,
    Note,
    Reject,
    SetTimer,
    TimerFired,
    UpdateArrived,
    World,
)
from offbeat.core.settings import Amount, Seconds, Settings, check
from offbeat.core.vector import distance, param_norm

OPEN, DEADLINE = "round", "deadline"


@dataclass(slots=True)
class Round:
    """The state of the rounds; part of a strategy's state."""

    newcomers: dict[int, None] = field(default_factory=dict)  # clients that were not in World.clients
    idle: dict[int, None] = field(default_factory=dict)
    waiting: dict[int, None] = field(default_factory=dict)  # members of the open round that have not reported yet
    wanted: int = 0  # reports that close the open round
    heard: int = 0  # reports so far
    number: int = 0  # rounds opened so far

    @property
    def is_open(self) -> bool:
        """True while a round is open."""
        return bool(self.wanted)


@dataclass(frozen=True, slots=True)
class RoundTurn:
    """The consequences of an event for the rounds."""

    actions: list[Action] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)  # a round opens: dispatch to these clients
    counts: bool = False  # this update belongs to the open round
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Rounds:
    """The settings of synchronous rounds."""

    sample: Sample = None
    deadline: Seconds | None = None  # seconds after the round opened
    over_select: Amount = 0.0  # dispatch to (1 + over_select) times `sample` clients, close after `sample` reports
    key: str = ""  # distinguishes timers and draws of rounds that run in parallel

    def __post_init__(self) -> None:
        check(self)

    def turn(self, rounds: Round, event: Event, clients: Mapping[int, object], seed: int) -> RoundTurn:
        """Record an event and return its consequences; `clients` are those known at the start."""
        match event:
            case ClientReady():
                rounds.idle[event.client] = None
                if event.client not in clients:
                    rounds.newcomers[event.client] = None
                return RoundTurn(actions=[] if rounds.is_open else [self.open_soon(event.now)])
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
        """Move the open round of `other` into `rounds`, merging it with an open round there."""
        timers: list[Action] = []
        if not rounds.is_open:
            rounds.heard = 0
            timers = self._set_deadline(now)
        rounds.waiting.update(other.waiting)
        rounds.wanted += other.wanted
        rounds.heard += other.heard
        return timers

    def open_soon(self, now: float) -> SetTimer:
        """Set the timer that opens a round after this instant."""
        return SetTimer(OPEN + self.key, now)

    def _set_deadline(self, now: float) -> list[Action]:
        """Set the timer of the deadline, if there is one."""
        return [] if self.deadline is None else [SetTimer(DEADLINE + self.key, now + self.deadline)]

    def cancel_deadline(self) -> list[Action]:
        """Cancel the timer of the deadline, if there is one."""
        return [] if self.deadline is None else [CancelTimer(DEADLINE + self.key)]

    def _open(self, rounds: Round, now: float, known: int, seed: int) -> RoundTurn:
        """Open a round with a sample of the idle clients, out of all known ones."""
        wanted = sample_size(self.sample, known)
        count = ceil(wanted * (1 + self.over_select) - 1e-9)
        chosen = sample(list(rounds.idle), count, seed, "round" + self.key, rounds.number)
        for client in chosen:
            del rounds.idle[client]
            rounds.waiting[client] = None
        rounds.wanted = min(wanted, len(chosen))
        rounds.heard = 0
        rounds.number += 1
        return RoundTurn(actions=self._set_deadline(now), chosen=chosen)

    def _maybe_close(self, rounds: Round, now: float, *, counts: bool) -> RoundTurn:
        """Close the round if enough members have reported or none is left; `counts` marks an update of the round."""
        if rounds.heard >= rounds.wanted or not rounds.waiting:
            return self._close(rounds, now, counts=counts)
        return RoundTurn(counts=counts)

    def _close(self, rounds: Round, now: float, *, counts: bool) -> RoundTurn:
        """Close the round; the next one opens after this instant, in which the last member becomes ready again."""
        rounds.waiting.clear()
        rounds.wanted = 0
        return RoundTurn(actions=[*self.cancel_deadline(), self.open_soon(now)], counts=counts, closes=True)


class RoundSettings(Settings):
    """Base class of strategies with rounds; they declare those of these settings that users may change."""

    sample: Sample = None
    deadline: Seconds | None = None
    over_select: Amount = 0.0

    @cached_property
    def _rounds(self) -> Rounds:
        """The rounds with the settings of this strategy."""
        return Rounds(sample=self.sample, deadline=self.deadline, over_select=self.over_select)


@dataclass(slots=True, kw_only=True)
class AveragingState(ServerState):
    """The state of a strategy whose rounds end with an average: FedAvg, FedProx, FedAvgM and FedAdam."""

    clients: Mapping[int, int]
    rounds: Round = field(default_factory=Round)
    answers: WeightedSum = field(default_factory=WeightedSum)
    memory: Moments = field(default_factory=Moments)  # of the server optimizer


class AveragesRounds(RoundSettings):
    """Base class of strategies whose rounds end with an average: FedAvg, FedProx, FedAvgM and FedAdam."""

    def init(self, world: World) -> AveragingState:
        """Return the initial state."""
        return AveragingState.of(world, clients=world.clients)

    def _average_round(
        self, state: AveragingState, event: Event, work: LocalWork, optimizer: ServerOptimizer | None = None
    ) -> list[Action]:
        """Handle an event: average the updates of each round, weighted by examples, and apply the server optimizer.

        Without an optimizer the average is the next model, bit for bit.
        """
        turn = self._rounds.turn(state.rounds, event, state.clients, state.seed)
        actions = turn.actions
        if turn.counts and isinstance(event, UpdateArrived):
            state.answers.add_model(state.layout, event)
        if turn.closes:
            actions = [*_close_average(state, optimizer), *actions]
        return actions + state.dispatch(turn.chosen, work)


def _close_average(state: AveragingState, optimizer: ServerOptimizer | None) -> list[Action]:
    """Commit the average of the reports, or the step of the optimizer towards it."""
    answers, state.answers = state.answers, WeightedSum()
    if answers.total is None:
        return []  # no reports: keep w and the moments
    w, model = state.model, answers.total.div_(answers.weight)  # sum_k n_k w_k / sum_k n_k
    notes: list[Action] = []
    if optimizer is not None:
        d = model.sub_(w)
        model = optimizer.step(state.memory, w, d)
        step = distance(state.layout.trainable(model), state.layout.trainable(w))
        notes = [Note({"d": param_norm(state.layout, d), "step": step})]
    answers.statistics.write(state.layout, model, w)  # statistics are averaged, without the optimizer
    return [state.publish(model), *notes]
