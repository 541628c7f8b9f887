"""When the next checkpoint is due: every so many seconds, but never so often that they take a noticeable part of the
run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 0.02  # of the run's time that checkpoints may take


class Cadence:
    """`every` seconds of computing between two checkpoints, and more where one takes long; 0 is after every event."""

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._next = clock() + every

    def due(self) -> bool:
        return self._clock() >= self._next

    @contextmanager
    def writing(self) -> Iterator[None]:
        began = self._clock()
        yield
        ended = self._clock()
        # cost / (cost + rest) = SHARE; who asks for one after every event gets it
        rest = (ended - began) * (1 - SHARE) / SHARE if self._every > 0 else 0.0
        self._next = ended + max(self._every, rest)
