"""Writing where there may be no room: it is waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from offbeat.core.errors import CheckpointError, RunError

log = logging.getLogger("offbeat")
T = TypeVar("T")

FULL = 5.0  # host seconds between two tries


class NoRoom(RunError):
    """The run was to stop while it waited."""


def patiently(where: str, write: Callable[[], T], stopping: Callable[[], bool]) -> T:
    """What `write` returns, as soon as it can be done; NoRoom if the run is `stopping` meanwhile."""
    said = False
    while True:
        try:
            return write()
        except (OSError, CheckpointError) as error:
            why = (error.strerror or error) if isinstance(error, OSError) else error
            if stopping():
                raise NoRoom(f"cannot write {where}: {why}") from None
            if not said:
                log.warning("cannot write %s: %s; waiting for room", where, why)
            said = True
            time.sleep(FULL)
