"""A heap and a tie-breaker: what is due next in virtual time, and the timers.

Events of one instant are ordered by (time, kind, client): arrivals, losses, clients coming back, timers in the order
they were set, evaluation. A timer set for `now` therefore fires when everything else of this instant is done.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from offbeat.core.snapshot import Get, Put, Tree, expect, pack, unpack

ARRIVE, LOST, READY, TIMER, EVALUATE = range(5)  # the order within one instant
NOBODY = -1

Due = tuple[float, int, int, int]  # (time, kind, client or order of the timer, ticket)


@dataclass(slots=True)
class Clock:
    now: float = 0.0
    heap: list[Due] = field(default_factory=list)
    orders: int = 0
    live: dict[str, int] = field(default_factory=dict)  # timer key -> its order; a moved or cancelled one is not here
    keys: dict[int, str] = field(default_factory=dict)  # order -> key
    at: dict[str, float] = field(default_factory=dict)
    dead: int = field(init=False)  # entries of the heap that were moved or cancelled

    def __post_init__(self) -> None:
        self.dead = sum(self._is_dead(due) for due in self.heap)

    def push(self, at: float, kind: int, who: int, ticket: int = NOBODY) -> None:
        heappush(self.heap, (float(at), kind, who, ticket))  # a world of numpy's numbers counts time in plain ones

    def next(self, horizon: float) -> Due | None:
        """What is due next; None if that lies beyond the horizon or, without one, only evaluation is left."""
        if self.dead:
            self._bury()
        if not self.heap:
            return None
        due = self.heap[0]
        if due[0] > horizon or (due[1] == EVALUATE and horizon == inf and len(self.heap) - self.dead == 1):
            return None
        return due

    def pop(self) -> None:
        """Advance to what is due next."""
        self.now = heappop(self.heap)[0]

    def drop(self, kind: int) -> None:
        """Nothing of this kind is due any more."""
        self.heap = [due for due in self.heap if due[1] != kind]
        heapify(self.heap)

    def upcoming(self) -> float:
        """When something is due next; inf if nothing is."""
        self._bury()
        return self.heap[0][0] if self.heap else inf

    @property
    def over(self) -> bool:
        """Nothing but evaluations of a model that will not change any more."""
        return all(due[1] == EVALUATE or self._is_dead(due) for due in self.heap)

    def _bury(self) -> None:
        """The first entry is alive after this."""
        while self.dead and self._is_dead(self.heap[0]):
            heappop(self.heap)
            self.dead -= 1

    def _is_dead(self, due: Due) -> bool:
        return due[1] == TIMER and due[2] not in self.keys

    def set_timer(self, key: str, at: float) -> None:
        at = float(at)
        if self.at.get(key) == at:
            return
        self.cancel_timer(key)
        self.live[key] = self.orders
        self.keys[self.orders] = key
        self.at[key] = at
        heappush(self.heap, (at, TIMER, self.orders, NOBODY))
        self.orders += 1

    def cancel_timer(self, key: str) -> None:
        """Cancelling an unknown timer is nothing."""
        if key in self.live:
            self._forget(key)
            self.dead += 1
            if self.dead > 64 and self.dead > len(self.heap) // 2:  # a deadline moved with every update would pile up
                self.heap = [due for due in self.heap if not self._is_dead(due)]
                heapify(self.heap)  # the order is total, so what is due next does not change
                self.dead = 0

    def _forget(self, key: str) -> None:
        del self.keys[self.live.pop(key)], self.at[key]

    def save(self, put: Put) -> Tree:
        # a million clients are a million entries: as tensors they cost a tenth of what they cost as text
        heap = [pack(array(code, [due[i] for due in self.heap]), put) for i, code in enumerate("dqqq")]
        return {"now": self.now, "orders": self.orders, "live": self.live, "at": self.at, "heap": heap}

    @classmethod
    def restored(cls, tree: Tree, get: Get) -> Clock:
        heap, live = tree["heap"], tree["live"]
        if len(heap) != 4 or not isinstance(heap[0], dict):  # format 1: an entry each
            heap = list(zip(*heap, strict=True)) or [(), (), (), ()]
        times, kinds, who, tickets = (unpack(column, get) if isinstance(column, dict) else column for column in heap)
        entries = list(zip(map(float, times), map(int, kinds), map(int, who), map(int, tickets), strict=True))
        keys = {order: key for key, order in live.items()}
        orders = expect(int, tree["orders"], "orders")
        return cls(now=float(tree["now"]), heap=entries, orders=orders, live=live, keys=keys, at=tree["at"])

    def fired(self, order: int) -> str:
        """The key of a timer that was popped; a fired timer is gone."""
        key = self.keys[order]
        self._forget(key)
        return key
