"""Who is there: clients that are ready, leave while idle, come back, or are away after a ticket died.

Whoever is idle and reachable is offered to the strategy; whoever is not is put on the clock for the time it comes back.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from offbeat.core.jobs import Job
from offbeat.core.protocol import ClientLost, ClientReady
from offbeat.engines.clock import LOST, NOBODY, READY
from offbeat.engines.exchange import deliver, examples

if TYPE_CHECKING:
    from offbeat.engines.virtual import VirtualEngine


def start(engine: VirtualEngine) -> None:
    """Everyone who is there is ready at time 0, in order of id; the rest when they come."""
    clients = sorted(engine.world.clients)
    for client in clients:  # first who is away: nobody may be sent work before they come
        if (when := engine.surroundings.next_available(client, 0.0)) > 0:
            _stay_away(engine, client, when)
    for client in clients:
        if engine.ledger.idle(client) and engine.reason is None:
            _ready(engine, client)


def offer(engine: VirtualEngine, client: int) -> None:
    """A client that was heard and is still idle: ready again at once, or gone for a while."""
    if not engine.ledger.idle(client) or engine.reason is not None:
        return
    now = engine.clock.now
    when = engine.surroundings.next_available(client, now)
    if when <= now:
        _ready(engine, client)
    else:
        _go(engine, client, when)


def lose(engine: VirtualEngine, job: Job, back: float, late: int = NOBODY) -> None:
    """Tell that the ticket is dead; the client is ready again when it is `back`."""
    now, client = engine.clock.now, job.client
    if back > now:
        _stay_away(engine, client, back, late)
    deliver(engine, ClientLost(now, client, job.ticket))
    if engine.ledger.idle(client) and engine.reason is None:
        _ready(engine, client)


def leave(engine: VirtualEngine, client: int) -> None:
    """The time at which an idle client would leave; if it was sent work meanwhile, that job has its own fate."""
    del engine.watched[client]
    if engine.ledger.idle(client):
        when = engine.surroundings.next_available(client, engine.clock.now)
        if when > engine.clock.now:
            _go(engine, client, when)
        else:
            _watch(engine, client)


def come_back(engine: VirtualEngine, client: int, late: int) -> None:
    """The time at which a client was to be back; with it may come an answer whose ticket is dead."""
    now = engine.clock.now
    if late != NOBODY:
        engine.trace.add(now, "late", engine.ledger.version, client, late, size=engine.traffic.wasted())
    when = engine.surroundings.next_available(client, now)
    if when > now:
        _stay_away(engine, client, when)
        return
    engine.ledger.join(client, examples(engine, client))
    engine.trace.add(now, "back", engine.ledger.version, client)
    _ready(engine, client)


def _ready(engine: VirtualEngine, client: int) -> None:
    """It can take work; if it gets none, the moment it leaves counts too."""
    deliver(engine, ClientReady(engine.clock.now, client, examples(engine, client)))
    if engine.ledger.idle(client):
        _watch(engine, client)


def _watch(engine: VirtualEngine, client: int) -> None:
    """One event a client at most, and none for those who stay: a million who are always there cost nothing."""
    if client not in engine.watched and isfinite(at := engine.surroundings.leaves(client, engine.clock.now)):
        engine.watched[client] = at
        engine.clock.push(at, LOST, client)


def _go(engine: VirtualEngine, client: int, until: float) -> None:
    now = engine.clock.now
    engine.trace.add(now, "left", engine.ledger.version, client)
    _stay_away(engine, client, until)
    deliver(engine, ClientLost(now, client, None))


def _stay_away(engine: VirtualEngine, client: int, until: float, late: int = NOBODY) -> None:
    engine.ledger.leave(client)
    if isfinite(until):
        engine.clock.push(until, READY, client, late)
