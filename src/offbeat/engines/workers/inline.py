"""The plain worker: one job at a time, in this process, exactly when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

from offbeat.core.errors import told
from offbeat.core.jobs import Failure, Job, Result
from offbeat.engines.workers import Answer


@dataclass(frozen=True, slots=True)
class Inline:
    train: Callable[[Job], Result]
    batches: ClassVar[bool] = False

    def compute(self, needed: Job, pending: Collection[Job]) -> list[Answer]:
        try:
            return [self.train(needed)]
        except MemoryError:
            raise  # the machine's trouble, not this client's
        except Exception as error:
            return [Failure(needed.ticket, told(error))]
