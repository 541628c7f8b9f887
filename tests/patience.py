"""Waiting for another process: on a loaded machine it may not be scheduled for long, so waits are minutes and end
when it has acted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 600.0  # seconds; only a process that hangs takes them


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
