"""Workers compute jobs. Training is lazy: nothing is computed before its arrival is due.

When an arrival is due and its result is not there yet, the engine hands over that job and every other one that is
dispatched and not computed. They are independent, so a worker may compute any of them along with the needed one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from offbeat.core.jobs import Failure, Job, Result

Answer = Result | Failure


class Worker(Protocol):
    @property
    def batches(self) -> bool:
        """Does it look at the pending jobs at all?"""
        ...

    def compute(self, needed: Job, pending: Collection[Job]) -> list[Answer]:
        """Answers for `needed` and for as many of the other `pending` jobs as suit this worker."""
        ...
