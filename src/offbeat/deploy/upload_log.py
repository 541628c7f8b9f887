"""The log of what leaves a site: a line for every message, and of very many messages the newest.

sent.log, and before it sent.log.1 to sent.log.9, the oldest last: some months of a busy site
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

log = logging.getLogger("offbeat")

LARGEST = 10 << 20  # bytes of a file, about: a line has less than a hundred
OLDER = 9  # files beside the one that is written


class SentLog:
    """For any thread."""

    def __init__(self, home: Path) -> None:
        self.path = home / "sent.log"
        self._one_at_a_time = threading.Lock()

    def add(self, kind: str, about: str, size: int) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = f"{now} {kind}{about} bytes={size}\n"
        try:
            with self._one_at_a_time:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(line)
                    full = file.tell() >= LARGEST
                if full:
                    self._turn()
        except OSError as error:  # what left is told nevertheless
            log.warning("%s cannot be written (%s): %s", self.path, error.strerror or error, line.strip())

    def _turn(self) -> None:
        files = [self.path, *(self.path.with_name(f"{self.path.name}.{n}") for n in range(1, OLDER + 1))]
        for newer, older in reversed([*pairwise(files)]):
            if newer.exists():
                newer.replace(older)
