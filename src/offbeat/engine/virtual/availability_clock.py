"""Departures and returns of clients in virtual time; clients that are always available need no memory."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from offbeat.core.client_environment import ClientEnvironment
from offbeat.engine.strategy_driver import Ledger
from offbeat.engine.virtual.event_heap import LOST, NO_ID, READY, Clock


class ClientAvailability:
    """Schedule departures and returns of clients on the clock."""

    def __init__(self, environment: ClientEnvironment, clock: Clock, ledger: Ledger) -> None:
        self.environment, self._clock, self._ledger = environment, clock, ledger
        self._departures: dict[int, float] = {}  # idle clients -> time of their scheduled departure
        self.next_available = environment.next_available  # (client, now) -> when it is reachable; now, if it is

    def restored(self, clock: Clock, ledger: Ledger) -> ClientAvailability:
        """Return the availability for a restored clock and ledger."""
        availability = ClientAvailability(self.environment, clock, ledger)
        pending = {client: at for at, kind, client, ticket in clock.heap if kind == LOST and ticket == NO_ID}
        availability._departures = pending
        return availability

    def num_examples(self, client: int) -> int:
        """Return the client's current number of examples, for its next job."""
        return self.environment.num_examples(client, self._ledger.job_counts.get(client, 0), self._clock.now)

    def absent_at_start(self, clients: Iterable[int]) -> list[int]:
        """Return the clients that are not available at time 0, and schedule their return."""
        absent = []
        for client in clients:
            when = self.next_available(client, 0.0)
            if when > 0:
                absent.append(client)
                self.schedule_return(client, when)
        return absent

    def schedule_return(self, client: int, when: float, late_ticket: int = NO_ID) -> None:
        """Schedule the return of a client; it may upload the answer to an expired ticket then."""
        if isfinite(when) and late_ticket == NO_ID:
            when = self.next_available(client, when)
        if isfinite(when):
            self._clock.push(when, READY, client, late_ticket)

    def has_returned(self, client: int) -> bool:
        """Return whether a client is available at its scheduled return; if not, schedule the next one."""
        now = self._clock.now
        when = self.next_available(client, now)
        if when > now:
            self.schedule_return(client, when)
        return when <= now

    def schedule_departure(self, client: int) -> None:
        """Schedule the departure of an idle client, if it ever leaves."""
        if client in self._departures or not self._ledger.is_idle(client):
            return
        at = self.environment.next_departure(client, self._clock.now)
        if isfinite(at):
            self._departures[client] = at
            self._clock.push(at, LOST, client)

    def has_left(self, client: int) -> bool:
        """Return whether a client leaves at its scheduled departure: it is idle and becomes unavailable."""
        del self._departures[client]
        now = self._clock.now
        if not self._ledger.is_idle(client):
            return False
        back = self.next_available(client, now)
        if back > now:
            self.schedule_return(client, back)
        else:
            self.schedule_departure(client)
        return back > now
