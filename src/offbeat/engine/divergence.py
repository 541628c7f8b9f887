"""Detection of models that are not finite; the run then ends with the last finite model as its result.

A check is one pass over the model. It runs every UPDATES_BETWEEN_CHECKS updates, before an evaluation, and when an
answer is refused, because a client that was sent such a model returns one. Checks depend only on the events of the
run, so a resumed run makes the same ones.
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
from offbeat.engine.progress import NOT_FINITE

UPDATES_BETWEEN_CHECKS = 64
MAX_NAMED_TICKETS = 8


@dataclass(slots=True)
class LastFiniteModel:
    """The last model that was found to be finite, and the tickets accepted since."""

    model: Tensor
    version: int = 0
    next_check: int = 0  # number of updates after which the next Commit is checked
    tickets: list[int] = field(default_factory=list)  # the first MAX_NAMED_TICKETS
    accepted: int = 0  # number of all tickets

    @classmethod
    def starting_from(cls, model: Tensor, version: int, updates: int) -> LastFiniteModel:
        """Return a record of the initial model; raise RunError if it is not finite."""
        if not is_finite(model):
            raise RunError("the initial model has numbers that are not finite: training cannot start from it")
        return cls(model, version, updates + UPDATES_BETWEEN_CHECKS)

    def replace(self, model: Tensor, version: int, updates: int) -> None:
        """Record a newer model that is finite."""
        self.model, self.version, self.next_check = model, version, updates + UPDATES_BETWEEN_CHECKS
        self.tickets, self.accepted = [], 0

    def find_fault(self, actions: Sequence[Action]) -> str | None:
        """Return the first action of an answer with a Commit that is not finite, in words."""
        commits = [action.model for action in actions if isinstance(action, Commit)]
        if not all(map(is_finite, commits)):
            return "a Commit"
        dispatches = [action for action in actions if isinstance(action, Dispatch)]
        for sent in dispatches:
            if not self._all_finite(sent.model, sent.work.extras.values(), commits):
                return f"a Dispatch to client {sent.client}"
        return None

    def find_job_fault(self, job: Job) -> str | None:
        """Return a description of the dispatch, if what the client was sent is not finite."""
        if self._all_finite(job.base, job.work.extras.values(), []):
            return None
        return f"a Dispatch to client {job.client}, ticket {job.ticket},"

    def describe(self, fault: str) -> str:
        """Return the reason of a run that ends with this fault."""
        named = ", ".join(map(str, self.tickets)) or "none"
        unnamed = self.accepted - len(self.tickets)
        more = f" and {unnamed} more" if unnamed else ""
        return f"{NOT_FINITE}: {fault} after version {self.version}, which is kept; tickets since: {named}{more}"

    def _all_finite(self, model: Tensor, extras: Iterable[Tensor], checked: Sequence[Tensor]) -> bool:
        """Return whether a model and its extras are finite; models in `checked` were found to be."""
        known = model is self.model or any(model is other for other in checked)
        return (known or is_finite(model)) and all(is_finite(extra.flatten()) for extra in extras)


def is_finite(vector: Tensor) -> bool:
    """Return whether a vector and its squared norm are finite; no client may send a larger one."""
    wide = vector if vector.dtype in (torch.float32, torch.float64) else vector.float()
    return isfinite(torch.dot(wide, wide).item())
