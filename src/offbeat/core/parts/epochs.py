"""Server steps at fixed intervals: a tick every `length` seconds, counted from time 0.

A tick is a timer at k * length, so updates that arrive exactly then belong to it. Idle clients wait for the tick to get
work. The timer is set only while clients work or wait, so that a run can end. Without a given length, it is the low
median of the durations of the first jobs, which start at once. The median is known when half of them are back, because
the others take longer. If all start together, that is the first tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from offbeat.core import draws
from offbeat.core.protocol import (
    Action,
    CancelTimer,
    ClientLost,
    ClientReady,
    Event,
    SetTimer,
    TimerFired,
    UpdateArrived,
)

TICK = "epoch"
AWAY = -1  # in `reports`: the client has left since


@dataclass(slots=True)
class Epochs:
    """The state of the ticks; part of a strategy's state."""

    length: float  # seconds; 0: not measured yet
    tick: int = -1  # number of the last tick
    passed: int = -1  # same as tick, or more if its timer fired so late that other ticks were skipped
    due: int | None = None  # number of the tick the timer is set for
    draws: int = 0
    durations: list[float] = field(default_factory=list)  # of first jobs, until the length is known
    waiting: dict[int, None] = field(default_factory=dict)  # idle clients
    at_work: dict[int, int] = field(default_factory=dict)  # client -> tick of its dispatch
    reports: dict[int, int] = field(default_factory=dict)  # as at_work, for clients that reported since the last tick

    def update(self, event: Event) -> bool:
        """Record an event and return whether it is a tick."""
        match event:
            case ClientReady():
                self.waiting[event.client] = None
            case UpdateArrived():
                self.reports[event.client] = self.at_work.pop(event.client, max(self.tick, 0))
                if not self.length:
                    self.durations.append(event.now - event.started)
            case ClientLost():
                (self.waiting if event.ticket is None else self.at_work).pop(event.client, None)
                if event.client in self.reports:
                    self.reports[event.client] = AWAY
            case TimerFired(key=key) if key == TICK and self.due is not None:
                self.tick, self.due = self.due, None
                self.passed = self.tick
                while self.length and (self.passed + 1) * self.length <= event.now:
                    self.passed += 1  # a late timer must not make work sent now look older
                return True
        if not self.length:
            self._measure(event.now)
        return False

    def age(self, client: int) -> int | None:
        """Return how many epochs a report took (1: it came before the next tick), or None if its client has left."""
        sent = self.reports[client]
        return None if sent == AWAY else max(1, (self.tick if self.due is None else self.due) - sent)

    def serve(self, limit: int | None, seed: int) -> list[int]:
        """Return the clients to dispatch to, at most `limit` in flight; must be called at every tick."""
        # until the length is known, clients that have reported keep waiting
        idle = list(self.waiting) if self.length else [client for client in self.waiting if client not in self.reports]
        free = len(idle) if limit is None else limit - len(self.at_work)
        chosen = draws.sample(idle, free, seed, "selection", self.draws)
        self.draws += 1
        for client in chosen:
            del self.waiting[client]
            self.at_work[client] = self.passed
        if self.length:
            self.reports.clear()
        return chosen

    def timer(self, event: Event) -> list[Action]:
        """Set or cancel the timer of the next tick; must be called last after every event."""
        if not self.waiting and not self.at_work:
            cancelled: list[Action] = [] if self.due is None else [CancelTimer(TICK)]
            self.due = None
            return cancelled
        if self.due is not None:
            return []
        if self.length:
            self.due = max(self.tick + 1, _tick_from(event.now, self.length))
            return [SetTimer(TICK, self.due * self.length)]
        if not self.at_work or (isinstance(event, ClientReady) and event.client not in self.reports):
            self.due = 0  # dispatch first jobs after this instant
            return [SetTimer(TICK, event.now)]
        return []

    def _measure(self, now: float) -> None:
        """Set the length and the number of the last tick once the median duration of the first jobs is known."""
        known, out = len(self.durations), len(self.at_work)
        if known == 0 or known < out:
            return
        # any length works if jobs take no time
        self.length = sorted(self.durations)[(known + out + 1) // 2 - 1] or 1.0
        self.durations.clear()
        self.tick, self.due = max(1, _tick_from(now, self.length)) - 1, None
        self.passed = self.tick
        for sent in (self.at_work, self.reports):  # measured jobs count as sent one epoch before the first tick
            sent.update({client: self.tick for client, tick in sent.items() if tick != AWAY})


def _tick_from(now: float, length: float) -> int:
    """Return the number k of the first tick at or after now, where k * length is rounded as in the timer."""
    k = ceil(now / length)
    while k * length < now:
        k += 1
    while k > 0 and (k - 1) * length >= now:
        k -= 1
    return k
