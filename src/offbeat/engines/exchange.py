"""The exchange with the strategy: it is handed an event, its answer is checked as a whole and carried out.

What the answer costs is settled here too: host time inside the strategy, bytes sent, and when each job sent will be heard of.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import (
    Action,
    CancelTimer,
    Commit,
    Dispatch,
    Event,
    Note,
    ProtocolError,
    Reject,
    SetTimer,
    Stop,
    UpdateArrived,
)
from offbeat.engines import finite
from offbeat.engines.clock import ARRIVE, LOST

if TYPE_CHECKING:
    from offbeat.engines.virtual import VirtualEngine

NOTHING: Mapping[str, Tensor] = {}


def deliver(engine: VirtualEngine, event: Event, arrived: Job | None = None, result: Result | None = None) -> None:
    """Hand an event to the strategy and carry out its answer; an update comes with its job and result."""
    p, began = engine.progress, time.perf_counter()
    actions = engine.strategy.on_event(engine.state, event)
    p.server_seconds += time.perf_counter() - began
    now, ledger = engine.clock.now, engine.ledger
    ledger.check(actions, engine.model, arrived, now)
    if p.updates >= p.look_at and not finite.answer_holds(engine, actions):
        return
    if result is not None and Reject not in map(type, actions):
        _accept(engine, event, result)  # before the answer is carried out: it may send the client its next job
    _carry_out(engine, actions)


def finish(engine: VirtualEngine) -> None:
    """The run ends in order: ask the strategy, if it has anything to say to that, for its last Commit and Note."""
    last = getattr(engine.strategy, "finish", None)
    if last is None:
        return
    began = time.perf_counter()
    actions = last(engine.state, engine.clock.now)
    engine.progress.server_seconds += time.perf_counter() - began
    engine.ledger.check_last(actions, engine.model, engine.clock.now)
    _carry_out(engine, actions)


def _carry_out(engine: VirtualEngine, actions: list[Action]) -> None:
    now, ledger = engine.clock.now, engine.ledger
    for action in actions:
        match action:
            case Dispatch():
                _dispatch(engine, action)
            case Commit():
                ledger.version += 1
                engine.model = action.model
                engine.trace.commit(now, ledger.version)
            case SetTimer():
                engine.clock.set_timer(action.key, action.at)
            case CancelTimer():
                engine.clock.cancel_timer(action.key)
            case Reject():
                engine.trace.add(now, "reject", ledger.version, action.client, action.ticket, detail=action.reason)
            case Note():
                engine.trace.note(now, action.ticket, action.values)
            case Stop():
                engine.reason = action.reason
    if engine.state.version != ledger.version:
        raise ProtocolError(f"state.version is {engine.state.version} after {ledger.version} commits: a strategy counts them too")


def _accept(engine: VirtualEngine, event: Event, result: Result) -> None:
    assert isinstance(event, UpdateArrived)
    engine.progress.updates += 1
    engine.progress.barren = 0
    if result.memory:
        engine.memories[event.client] = result.memory


def _dispatch(engine: VirtualEngine, action: Dispatch) -> None:
    """Send a job, and put on the clock how it will end: it arrives, once or twice, or its ticket expires."""
    clock, client = engine.clock, action.client
    now, num_examples = clock.now, examples(engine, client)
    job = engine.ledger.dispatch(action, now, num_examples, engine.memories.get(client, NOTHING))
    trip = engine.surroundings.trip(client, job.index, action.work, num_examples, now)
    if not (trip.duration >= 0 and isfinite(trip.duration)):
        raise RunError(f"client {client} would take {trip.duration} s for its job {job.index}: durations are finite, 0 or more")
    engine.trace.add(now, "dispatch", engine.ledger.version, client, job.ticket, size=engine.traffic.down(action))
    patience = engine.timeout * trip.expected
    if trip.crashes or trip.duration > patience:
        clock.push(now + patience, LOST, client, job.ticket)
    else:
        clock.push(now + trip.duration, ARRIVE, client, job.ticket)
        if trip.again is not None:
            clock.push(now + trip.duration + trip.again, ARRIVE, client, job.ticket)


def examples(engine: VirtualEngine, client: int) -> int:
    """How many the client has by now."""
    return engine.surroundings.num_examples(client, engine.ledger.jobs.get(client, 0), engine.clock.now)
