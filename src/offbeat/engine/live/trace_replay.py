"""Replay of a live run in virtual time from its trace, which checks the run.

The trace contains when sites joined and answered; local trainings, decisions and the model are computed again. The
result equals the live run's bit for bit if its sites compute what this machine computes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace

import torch

from offbeat.core.errors import RunError
from offbeat.core.jobs import TRAINING_SECONDS, Job, Result
from offbeat.core.protocol import Strategy, World
from offbeat.core.threads import one_thread
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.gate import Gate, Verdict
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until


@one_thread()
def replay_trace(
    db: sqlite3.Connection,
    strategy: Strategy,
    world: World,
    train: Callable[[Job], Result],
    until: Until | None = None,
    gate: Gate | None = None,
) -> Coordinator:
    """Report the facts of a trace to a new coordinator; `world` and `train` use the client numbers of that run."""
    run = Coordinator(strategy, world, until=until, gate=gate, trace=Trace(), stop_when_hopeless=False)
    seconds: dict[int, float] = dict(
        db.execute("SELECT ticket, value FROM notes WHERE key = ? AND ticket NOT NULL", (TRAINING_SECONDS,))
    )
    run.begin(0.0)
    rows = db.execute("SELECT now, kind, client, ticket, examples, bytes, detail FROM trace ORDER BY seq")
    for now, kind, client, ticket, examples, size, detail in rows:
        match kind:
            case "arrive":
                run.answered(now, ticket, _train_again(run, train, ticket, seconds.get(ticket)), now, size)
            case "refuse":
                run.answered(now, ticket, str(detail), now, size)
            case "lost":
                run.expired(now, ticket, detail, float("inf"))
            case "back":
                run.joined(now, client, examples)
            case "examples":
                run.examples_reported(now, client, examples)
            case "timer":
                run.timer_fired(now, str(detail))
            case "left":
                run.left(now, client)
            case "late" | "duplicate":
                run.unexpected_upload(now, client, ticket, kind, size)
            case "stop":
                run.driver.finish(now)
    return run


def _train_again(run: Coordinator, train: Callable[[Job], Result], ticket: int, seconds: float | None) -> Verdict:
    """Train an open job; its result takes the training time that the site measured."""
    job = run.ledger.open_jobs.get(ticket)
    if job is None:
        raise RunError(f"the trace has an answer to ticket {ticket}, which the replay did not send")
    verdict = run.judge([train(job)])[0]
    if isinstance(verdict, str):
        raise RunError(f"ticket {ticket} was accepted in the live run and is refused in the replay: {verdict}")
    if seconds is None:
        return verdict
    extra = torch.tensor([seconds], dtype=torch.float64)
    return replace(verdict, extras={**verdict.extras, TRAINING_SECONDS: extra})
