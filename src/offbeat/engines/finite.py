"""Never a model that is not finite: what a strategy commits and sends is looked at, and a run falls back to the last sound model.

The gate leaves room for every strategy's arithmetic, so nothing here happens to a strategy that keeps the laws. To one that
does not: its answer is refused, the run ends with the tickets that arrived since the last look, and the last model found
finite is what is evaluated and stored. A look is one pass, once in EVERY updates, and wherever a spoilt model would show:
before an evaluation, and when an answer is refused (whoever is sent such a model sends one back). These are events of the
run, so a resumed one finds the same. A checkpoint of a spoilt model is not written: the one before stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.jobs import Job
from offbeat.core.protocol import Action, Commit, Dispatch

if TYPE_CHECKING:
    from offbeat.engines.virtual import VirtualEngine

NOT_FINITE = "not finite"  # how such a run's reason begins
EVERY = 64
NAMED = 8  # tickets


def start(engine: VirtualEngine) -> None:
    if not finite(engine.model):
        raise RunError("the model to begin with holds numbers that are not finite: nothing can be learned from there")
    _keep(engine, engine.model, engine.ledger.version)


def answer_holds(engine: VirtualEngine, actions: list[Action]) -> bool:
    """Is every model of this answer finite? If not the run ends, and nothing of the answer may be carried out."""
    commits = [action.model for action in actions if type(action) is Commit]
    if not commits:
        return True  # looked at with the next Commit
    for model in commits:
        if not finite(model):
            return _end(engine, "a Commit")
    for action in actions:
        if isinstance(action, Dispatch) and not _sound(action.model, action.work.extras.values(), commits):
            return _end(engine, f"a Dispatch to client {action.client}")
    _keep(engine, commits[-1], engine.ledger.version + len(commits))
    return True


def model_holds(engine: VirtualEngine) -> bool:
    """Is the current model finite? If not the run ends with the last one that was."""
    if engine.model is engine.progress.sound:
        return True
    if not finite(engine.model):
        return _end(engine, "a Commit")
    _keep(engine, engine.model, engine.ledger.version)
    return True


def job_holds(engine: VirtualEngine, job: Job) -> bool:
    """An answer was refused: was it for what its client was sent? If so the run ends."""
    if not _sound(job.base, job.work.extras.values(), [engine.progress.sound]):
        return _end(engine, f"a Dispatch to client {job.client}, ticket {job.ticket},")
    return model_holds(engine)


def ended(reason: str | None) -> bool:
    """Did a run end so?"""
    return reason is not None and reason.startswith(NOT_FINITE)


def finite(vector: Tensor) -> bool:
    """Finite, and its square too: what is larger is beyond what any client may send, and soon beyond all numbers."""
    wide = vector if vector.dtype in (torch.float32, torch.float64) else vector.float()
    return isfinite(torch.dot(wide, wide).item())


def _sound(model: Tensor, extras: Iterable[Tensor], known: Sequence[Tensor | None]) -> bool:
    """What is known to be finite is not looked at again."""
    return (any(model is other for other in known) or finite(model)) and all(finite(extra.flatten()) for extra in extras)


def _keep(engine: VirtualEngine, model: Tensor, version: int) -> None:
    p = engine.progress
    p.sound, p.sound_at, p.look_at = model, (version, engine.trace.seq), p.updates + EVERY


def _end(engine: VirtualEngine, what: str) -> bool:
    p = engine.progress
    version, seq = p.sound_at
    query = "SELECT kind, ticket FROM trace WHERE kind IN ('arrive', 'reject') AND seq >= ? ORDER BY seq"
    rows = list(engine.trace.rows(query, (seq,)))
    rejected = {ticket for kind, ticket in rows if kind == "reject"}
    tickets = [ticket for kind, ticket in rows if kind == "arrive" and ticket not in rejected]
    named = ", ".join(map(str, tickets[:NAMED])) or "none"
    more = f" and {len(tickets) - NAMED} more" if len(tickets) > NAMED else ""
    engine.reason = f"{NOT_FINITE}: {what} after version {version}, which is kept; tickets since: {named}{more}"
    assert p.sound is not None
    engine.model, engine.ledger.version = p.sound, version
    return False
