"""Waiting for other processes.

On a loaded machine a process may not be scheduled for a long time, so limits are minutes; a wait ends as soon as the
condition holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_WAIT_SECONDS = 600.0  # reached only if a process hangs


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {MAX_WAIT_SECONDS:g} s"
        time.sleep(0.02)
