"""Functions that drive strategies in tests: start an engine, let updates arrive, and read what the strategy did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from offbeat.core.jobs import Job
from offbeat.core.protocol import Commit, Note, Reject
from offbeat.testing import Script, ScriptedEngine, hand_world, play

TWO = {0: 10, 1: 30}  # client -> number of examples
A = TypeVar("A")


def started(strategy: Any, model: list[float], clients: Mapping[int, int] = TWO, **world: bool) -> ScriptedEngine:
    """Start an engine at time 0, with the first jobs sent."""
    return start(ScriptedEngine(strategy, hand_world(model, clients, **world)))


def start(engine: ScriptedEngine) -> ScriptedEngine:
    """Let all clients become ready at time 0, and end this instant."""
    engine.start()
    engine.advance()
    return engine


def arrive_all(engine: ScriptedEngine, *updates: tuple[int, list[float], float]) -> list[float]:
    """Let updates (client, local model, time) arrive, and return the model afterwards."""
    for client, local, at in updates:
        engine.arrive(client, local, at=at)
    return engine.model.tolist()


def model_after(engine: ScriptedEngine, client: int, local: Any = None, **arrival: Any) -> list[float]:
    """Return the model after a client's update has arrived."""
    engine.arrive(client, local, **arrival)
    return engine.model.tolist()


def model_at(engine: ScriptedEngine, time: float | None = None) -> list[float]:
    """Return the model after all timers until this time have fired."""
    engine.advance(time)
    return engine.model.tolist()


def model_after_instant(engine: ScriptedEngine, client: int, local: Any = None, **arrival: Any) -> list[float]:
    """Return the model after a client's update has arrived and all timers of this instant have fired."""
    engine.arrive(client, local, **arrival)
    return model_at(engine)


def run_round(engine: ScriptedEngine, *local_models: list[float]) -> list[float]:
    """Let clients 0, 1, ... report one second apart, and return the model at the end of the last instant."""
    for client, local in enumerate(local_models):
        engine.arrive(client, local, at=engine.now + 1.0)
    return model_at(engine)


def open_job(engine: ScriptedEngine, client: int) -> Job:
    """Return the job that a client works on."""
    return engine.ledger.open_jobs[engine.ledger.open_tickets[client]]


def at_work(engine: ScriptedEngine) -> list[int]:
    """Return the clients that have work."""
    return sorted(engine.ledger.open_tickets)


def actions(engine: ScriptedEngine, kind: type[A]) -> list[A]:
    """Return all actions of a kind that the strategy has returned so far."""
    return [action for entry in engine.log for action in entry.actions if isinstance(action, kind)]


def noted(engine: ScriptedEngine, key: str) -> list[float]:
    """Return the values that the strategy has noted under a key."""
    return [note.values[key] for note in actions(engine, Note) if key in note.values]


def rejected(engine: ScriptedEngine) -> list[int]:
    """Return the clients whose updates the strategy has rejected."""
    return [action.client for action in actions(engine, Reject)]


def committed(strategy: Any, script: Script, world: Any) -> list[Tensor]:
    """Play a script and return the committed models."""
    return [action.model for action in actions(play(strategy, script, world), Commit)]
