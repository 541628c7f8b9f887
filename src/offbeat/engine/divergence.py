"""Never a model that is not finite: what a strategy commits and sends is looked at, and a run falls back to the last
sound model.

The gate leaves room for every strategy's arithmetic, so nothing here happens to a strategy that keeps the laws. To one
that does not: its answer is refused, the run ends with the tickets that were accepted since the last look, and the last
model found finite is what is evaluated and stored. A look is one pass, once in EVERY updates, and wherever a spoilt
model would show: before an evaluation, and when an answer is refused (whoever is sent such a model sends one back).
These are events of the run, so a resumed one finds the same. A checkpoint of a spoilt model is not written: the one
before stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.jobs import Job
from offbeat.core.protocol import Action, Commit, Dispatch

NOT_FINITE = "not finite"  # how such a run's reason begins
EVERY = 64
NAMED = 8  # tickets


@dataclass(slots=True)
class Footing:
    """The last model found to be finite."""

    model: Tensor
    version: int = 0
    look_at: int = 0  # updates after which the next Commit is looked at
    # the first that were accepted since; a method may never commit, so not all
    tickets: list[int] = field(default_factory=list)
    more: int = 0  # and how many others

    @classmethod
    def on(cls, model: Tensor, version: int, updates: int) -> Footing:
        if not finite(model):
            raise RunError(
                "the model to begin with holds numbers that are not finite: nothing can be learned from there"
            )
        return cls(model, version, updates + EVERY)

    def keep(self, model: Tensor, version: int, updates: int) -> None:
        self.model, self.version, self.look_at, self.tickets, self.more = model, version, updates + EVERY, [], 0

    def accepted(self, ticket: int) -> None:
        if len(self.tickets) < NAMED:
            self.tickets.append(ticket)
        else:
            self.more += 1

    def fault(self, actions: Sequence[Action]) -> str | None:
        """What in an answer that commits is not finite, if anything is."""
        commits = [action.model for action in actions if isinstance(action, Commit)]
        if not all(map(finite, commits)):
            return "a Commit"
        for action in actions:
            if isinstance(action, Dispatch) and not self._sound(action.model, action.work.extras.values(), commits):
                return f"a Dispatch to client {action.client}"
        return None

    def fault_of(self, job: Job) -> str | None:
        """Of what a client was sent."""
        sound = self._sound(job.base, job.work.extras.values(), [])
        return None if sound else f"a Dispatch to client {job.client}, ticket {job.ticket},"

    def reason(self, fault: str) -> str:
        named = ", ".join(map(str, self.tickets)) or "none"
        more = f" and {self.more} more" if self.more else ""
        return f"{NOT_FINITE}: {fault} after version {self.version}, which is kept; tickets since: {named}{more}"

    def _sound(self, model: Tensor, extras: Iterable[Tensor], known: Sequence[Tensor]) -> bool:
        """What is known to be finite is not looked at again."""
        known_so = model is self.model or any(model is other for other in known)
        return (known_so or finite(model)) and all(finite(extra.flatten()) for extra in extras)


def ended(reason: str | None) -> bool:
    """Did a run end so?"""
    return reason is not None and reason.startswith(NOT_FINITE)


def finite(vector: Tensor) -> bool:
    """Finite, and its square too: what is larger is beyond what any client may send, and soon beyond all numbers."""
    wide = vector if vector.dtype in (torch.float32, torch.float64) else vector.float()
    return isfinite(torch.dot(wide, wide).item())
