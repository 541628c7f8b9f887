"""What serve and join share: an end that is asked for, and lines while it goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupted() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM or a terminal that is closed set the event, once; what is going on is then ended in order."""
    asked = threading.Event()
    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda *_: asked.set())
    try:
        yield asked
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


def tell(line: str) -> None:
    from offbeat.cli.terminal import say

    say(line, err=True)
