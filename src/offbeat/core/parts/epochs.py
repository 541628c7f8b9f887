"""Server steps on a clock: everything happens at ticks, every `length` seconds, counted from time 0.

A tick is a timer at k * length, so whoever answers exactly then still belongs to it. Clients that answered, came or
came back wait for the tick and are served there. The timer runs as long as anybody works or waits, and no longer: a run
must be able to end. Without a length given, it is the low median of the first jobs: they go out at once, and half of
them being back tells it, since those still out are the longer half. When all began together that is the instant of the
first tick.
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
AWAY = -1  # "sent" of a report whose client left since: long ago


@dataclass(slots=True)
class Epochs:
    """State of the ticks; part of a strategy's state."""

    length: float  # seconds; 0: not measured yet
    tick: int = -1  # number of the last one
    passed: int = -1  # the same, unless its timer fired so late that others should have been since
    due: int | None = None  # number of the one the timer is set for
    draws: int = 0
    durations: list[float] = field(default_factory=list)  # of first jobs, until they tell the length
    waiting: dict[int, None] = field(default_factory=dict)  # can take work
    at_work: dict[int, int] = field(default_factory=dict)  # client -> tick at which it was sent work
    # heard since the last tick -> tick at which it had been sent its work
    reports: dict[int, int] = field(default_factory=dict)

    def update(self, event: Event) -> bool:
        """Book the event. Is it a tick?"""
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
                    self.passed += 1  # a timer may fire late: work sent now must not look older than it is
                return True
        if not self.length:
            self._measure(event.now)
        return False

    def age(self, client: int) -> int | None:
        """How many epochs a report took (1: it came at the first tick it could); None: its client left since."""
        sent = self.reports[client]
        return None if sent == AWAY else max(1, (self.tick if self.due is None else self.due) - sent)

    def serve(self, limit: int | None, seed: int) -> list[int]:
        """Whom to send work at this tick: all who wait, or as many as there is room for. To be called at every tick."""
        # while first jobs are measured, those who have done theirs wait on
        idle = list(self.waiting) if self.length else [client for client in self.waiting if client not in self.reports]
        room = len(idle) if limit is None else limit - len(self.at_work)
        chosen = draws.sample(idle, room, seed, "selection", self.draws)
        self.draws += 1
        for client in chosen:
            del self.waiting[client]
            self.at_work[client] = self.passed
        if self.length:
            self.reports.clear()
        return chosen

    def timer(self, event: Event) -> list[Action]:
        """To be asked after every event, last."""
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
            self.due = 0  # first jobs are handed out when this instant is over
            return [SetTimer(TICK, event.now)]
        return []

    def _measure(self, now: float) -> None:
        known, out = len(self.durations), len(self.at_work)
        if known == 0 or known < out:
            return
        # jobs that take no time: any length will do
        self.length = sorted(self.durations)[(known + out + 1) // 2 - 1] or 1.0
        self.durations.clear()
        self.tick, self.due = max(1, _tick_from(now, self.length)) - 1, None
        self.passed = self.tick
        for sent in (self.at_work, self.reports):  # what was measured counts as sent one epoch before the first tick
            sent.update({client: self.tick for client, tick in sent.items() if tick != AWAY})


def _tick_from(now: float, length: float) -> int:
    """The number of the first tick at or after now; k * length is what the timer will say, rounding and all."""
    k = ceil(now / length)
    while k * length < now:
        k += 1
    while k > 0 and (k - 1) * length >= now:
        k -= 1
    return k
