"""A live run once more, in virtual time, from what its trace recorded: who came and answered when.

Everything else is computed again: local trainings, the strategy's decisions, the model. What comes out is the live
run's to the last bit, where its sites compute what this machine computes. That is how a live run is checked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from offbeat.core.errors import RunError
from offbeat.core.jobs import TRAINING_SECONDS, Job, Result
from offbeat.core.protocol import Strategy, World
from offbeat.core.threads import one_thread
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.gate import Gate
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until

OUTCOMES = ("arrive", "refuse")


@one_thread()
def retell(
    db: sqlite3.Connection,
    strategy: Strategy,
    world: World,
    train: Callable[[Job], Result],
    until: Until | None = None,
    gate: Gate | None = None,
) -> Coordinator:
    """The conversation as the trace tells it; `world` and `train` know the clients by the numbers of that run."""
    run = Coordinator(strategy, world, until=until, gate=gate, trace=Trace(), gives_up=False)
    seconds: dict[int, float] = dict(
        db.execute("SELECT ticket, value FROM notes WHERE key = ? AND ticket NOT NULL", (TRAINING_SECONDS,))
    )
    run.begin(0.0)
    rows = db.execute("SELECT now, kind, client, ticket, examples, bytes, detail FROM trace ORDER BY seq")
    for now, kind, client, ticket, examples, size, detail in rows:
        if kind in OUTCOMES:
            verdict = _verdict(run, train, ticket, seconds.get(ticket)) if kind == "arrive" else str(detail)
            run.answered(now, ticket, verdict, now, size)
        elif kind == "lost":
            run.expired(now, ticket, detail, float("inf"))
        elif kind == "back":
            run.joined(now, client, examples)
        elif kind == "examples":
            run.claims(now, client, examples)
        elif kind == "timer":
            run.fired(now, str(detail))
        elif kind == "left":
            run.left(now, client)
        elif kind in ("late", "duplicate"):
            run.strayed(now, client, ticket, kind, size)
        elif kind == "stop":
            run.finish(now)
    return run


def _verdict(run: Coordinator, train: Callable[[Job], Result], ticket: int, seconds: float | None) -> Any:
    job = run.ledger.open.get(ticket)
    if job is None:
        raise RunError(f"the trace tells of an answer to ticket {ticket}, which was not sent this time")
    verdict = run.judge([train(job)])[0]
    if isinstance(verdict, str):
        raise RunError(f"ticket {ticket} was accepted then and is refused now: {verdict}")
    if seconds is None:
        return verdict
    told = torch.tensor([seconds], dtype=torch.float64)
    return replace(verdict, extras={**verdict.extras, TRAINING_SECONDS: told})
