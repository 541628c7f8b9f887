"""Federations of real processes, for tests: started by the command line, killed, looked at."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

OFFBEAT = [sys.executable, "-m", "offbeat"]
PATIENCE = 240.0  # seconds: everything here takes far less on an idle machine


class Command:
    """An `offbeat …` in the background. All that it starts, and they start, carries its mark."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = f"test-{uuid.uuid4().hex}"
        self.output = folder / f"{arguments[0]}-{self.mark[-6:]}.out"
        # nothing may need the virtual environment on PATH
        environment = {**os.environ, "OFFBEAT_TEST_MARK": self.mark, "PATH": "/usr/bin:/bin"}
        with open(self.output, "wb") as out:
            self.process = subprocess.Popen(
                [*OFFBEAT, *arguments], cwd=folder, stdout=out, stderr=out, env=environment, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def family(self) -> list[int]:
        """Who carries the mark, with this one's own number."""
        return [number for number in processes() if self.mark.encode() in environment_of(number)]

    def leaves_nobody(self, seconds: float = PATIENCE) -> bool:
        return within(seconds, lambda: not self.family())

    def end(self) -> None:
        """After a test, whatever became of it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for number in self.family():
            os.kill(number, signal.SIGKILL)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment_of(number: int) -> bytes:
    try:
        if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X"):
            return b""
        return Path(f"/proc/{number}/environ").read_bytes()
    except OSError:
        return b""


def command_of(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def within(seconds: float, condition: Callable[[], Any]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def rows(run: Path, query: str) -> list[tuple[Any, ...]]:
    """Of the trace, while it is written; nothing while it is being made."""
    if not (run / "run.sqlite").is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{(run / 'run.sqlite').resolve().as_uri()}?mode=ro", uri=True)) as db:
            return db.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []


def updates(run: Path) -> int:
    found = rows(run, "SELECT COUNT(*) FROM trace WHERE kind = 'arrive'")
    return int(found[0][0]) if found else 0


def server_process(run: Path) -> int | None:
    """Of the server app; None while there is none."""
    try:
        return int(json.loads((run / "live" / "app_status.json").read_text())["process"])
    except FileNotFoundError:
        return None


def consumed_once(run: Path) -> bool:
    """No ticket was answered twice, and versions follow each other."""
    tickets = [t for (t,) in rows(run, "SELECT ticket FROM trace WHERE kind IN ('arrive', 'refuse', 'lost', 'reject')")]
    versions = [v for (v,) in rows(run, "SELECT version FROM commits ORDER BY seq")]
    return len(tickets) == len(set(tickets)) and versions == list(range(1, len(versions) + 1))
