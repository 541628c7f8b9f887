"""The heap of scheduled events in virtual time, and the timers of the strategy.

Events of one instant are ordered by (time, kind, client): arrivals, losses, returning clients, timers in the order in
which they were set, evaluation. A timer set for `now` therefore fires after everything else of this instant.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from offbeat.core.snapshot import Get, Put, Tree, expect_type, pack, unpack

ARRIVE, LOST, READY, TIMER, EVALUATE = range(5)  # kinds of events, in their order within one instant
NO_ID = -1  # no client or no ticket
MAX_STALE_ENTRIES = 64

ScheduledEvent = tuple[float, int, int, int]  # (time, kind, client or number of the timer, ticket)


@dataclass(slots=True)
class Clock:
    """The current time and all scheduled events."""

    now: float = 0.0
    heap: list[ScheduledEvent] = field(default_factory=list)
    next_timer: int = 0  # number of the next timer that is set
    timer_numbers: dict[str, int] = field(default_factory=dict)  # key -> number, of timers that are set
    timer_keys: dict[int, str] = field(default_factory=dict)  # number -> key
    timer_times: dict[str, float] = field(default_factory=dict)
    stale_entries: int = field(init=False)  # entries of timers that were moved or cancelled

    def __post_init__(self) -> None:
        self.stale_entries = sum(self._is_stale(event) for event in self.heap)

    def push(self, at: float, kind: int, client: int, ticket: int = NO_ID) -> None:
        """Schedule an event."""
        heappush(self.heap, (float(at), kind, client, ticket))  # float: a world may compute with numpy numbers

    def next(self, horizon: float) -> ScheduledEvent | None:
        """Return the next event; None if it lies beyond the horizon or, without one, only evaluation is left."""
        if self.stale_entries:
            self._drop_stale()
        if not self.heap:
            return None
        event = self.heap[0]
        at, kind, _, _ = event
        if at > horizon or (kind == EVALUATE and horizon == inf and len(self.heap) - self.stale_entries == 1):
            return None
        return event

    def pop(self) -> None:
        """Remove the next event and move the time to it."""
        self.now = heappop(self.heap)[0]

    def remove_kind(self, kind: int) -> None:
        """Remove all events of one kind."""
        self.heap = [event for event in self.heap if event[1] != kind]
        heapify(self.heap)

    def next_time(self) -> float:
        """Return the time of the next event; inf if there is none."""
        self._drop_stale()
        return self.heap[0][0] if self.heap else inf

    @property
    def only_evaluations_left(self) -> bool:
        """Return whether the model can no longer change."""
        return all(event[1] == EVALUATE or self._is_stale(event) for event in self.heap)

    def set_timer(self, key: str, at: float) -> None:
        """Set a timer; an existing one with this key is moved."""
        at = float(at)
        if self.timer_times.get(key) == at:
            return
        self.cancel_timer(key)
        self.timer_numbers[key] = self.next_timer
        self.timer_keys[self.next_timer] = key
        self.timer_times[key] = at
        heappush(self.heap, (at, TIMER, self.next_timer, NO_ID))
        self.next_timer += 1

    def cancel_timer(self, key: str) -> None:
        """Cancel a timer; an unknown key is ignored."""
        if key not in self.timer_numbers:
            return
        self._remove_timer(key)
        self.stale_entries += 1
        # a deadline that moves with every update would pile up
        if self.stale_entries > MAX_STALE_ENTRIES and self.stale_entries > len(self.heap) // 2:
            self.heap = [event for event in self.heap if not self._is_stale(event)]
            heapify(self.heap)  # the order is total, so the next event does not change
            self.stale_entries = 0

    def take_timer(self, number: int) -> str:
        """Remove a timer whose event was popped; return its key."""
        key = self.timer_keys[number]
        self._remove_timer(key)
        return key

    def _remove_timer(self, key: str) -> None:
        """Forget a timer; its entry in the heap is stale from now on, unless it was popped."""
        del self.timer_keys[self.timer_numbers.pop(key)], self.timer_times[key]

    def _drop_stale(self) -> None:
        """Remove stale entries until the first entry is an event."""
        while self.stale_entries and self._is_stale(self.heap[0]):
            heappop(self.heap)
            self.stale_entries -= 1

    def _is_stale(self, event: ScheduledEvent) -> bool:
        """Return whether this entry is of a timer that was moved or cancelled."""
        _, kind, number, _ = event
        return kind == TIMER and number not in self.timer_keys

    def save(self, put: Put) -> Tree:
        """Return the clock as a tree."""
        # columns: a million entries cost a tenth as tensors of what they cost as text
        columns = [pack(array(code, [event[i] for event in self.heap]), put) for i, code in enumerate("dqqq")]
        return {
            "now": self.now,
            "next_timer": self.next_timer,
            "timer_numbers": self.timer_numbers,
            "timer_times": self.timer_times,
            "heap": columns,
        }

    @classmethod
    def restored(cls, tree: Tree, get: Get) -> Clock:
        """Return the clock that was saved."""
        times, kinds, clients, tickets = (unpack(column, get) for column in tree["heap"])
        heap = zip(map(float, times), map(int, kinds), map(int, clients), map(int, tickets), strict=True)
        numbers = expect_type(dict, tree["timer_numbers"], "timer_numbers")
        return cls(
            now=float(tree["now"]),
            heap=list(heap),
            next_timer=expect_type(int, tree["next_timer"], "next_timer"),
            timer_numbers=numbers,
            timer_keys={number: key for key, number in numbers.items()},
            timer_times=expect_type(dict, tree["timer_times"], "timer_times"),
        )
