"""Who is there, in virtual time: when clients leave, and when they are back.

What will happen to a client is put on the clock once it is known, one entry a client at most; nothing is kept for
those who stay. Which entries there are is read off the clock after a resume.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from offbeat.core.client_environment import Surroundings
from offbeat.core.ledger import Ledger
from offbeat.engine.virtual.event_heap import LOST, NOBODY, READY, Clock


class Presence:
    def __init__(self, surroundings: Surroundings, clock: Clock, ledger: Ledger) -> None:
        self.surroundings, self._clock, self._ledger = surroundings, clock, ledger
        self._leaving: dict[int, float] = {}  # idle clients -> when they leave, where that is known
        self.back = surroundings.next_available  # (client, now): when it can be reached; now, if it is there

    def restored(self, clock: Clock, ledger: Ledger) -> Presence:
        """The same world, as a saved clock knows it."""
        presence = Presence(self.surroundings, clock, ledger)
        presence._leaving = {who: at for at, kind, who, ticket in clock.heap if kind == LOST and ticket == NOBODY}
        return presence

    def num_examples(self, client: int) -> int:
        """What the client has now, for its next job."""
        return self.surroundings.num_examples(client, self._ledger.jobs.get(client, 0), self._clock.now)

    def away(self, clients: Iterable[int]) -> list[int]:
        """Those who are not there at the start; they are expected."""
        found = []
        for client in clients:
            when = self.back(client, 0.0)
            if when > 0:
                found.append(client)
                self.expect(client, when)
        return found

    def expect(self, client: int, when: float, late: int = NOBODY) -> None:
        """The client is to be back then, if it can be reached; it may bring an answer that is late."""
        if isfinite(when) and late == NOBODY:
            when = self.back(client, when)
        if isfinite(when):
            self._clock.push(when, READY, client, late)

    def is_back(self, client: int) -> bool:
        """Its time has come: is it there? If not, it is expected again."""
        now = self._clock.now
        when = self.back(client, now)
        if when > now:
            self.expect(client, when)
        return when <= now

    def watch(self, client: int) -> None:
        """An idle client may leave: note when. A million who are always there cost nothing."""
        if client in self._leaving or not self._ledger.idle(client):
            return
        at = self.surroundings.leaves(client, self._clock.now)
        if isfinite(at):
            self._leaving[client] = at
            self._clock.push(at, LOST, client)

    def leaves(self, client: int) -> bool:
        """The time at which it would leave, idle: does it? If it stays, it is watched on."""
        del self._leaving[client]
        now = self._clock.now
        if not self._ledger.idle(client):
            return False
        back = self.back(client, now)
        if back > now:
            self.expect(client, back)
        else:
            self.watch(client)
        return back > now
