"""Children of a warmed-up process: it has imported everything and loaded the data, so that a run costs its own time
only.

A child is forked, calls the command line as a user would, and may be killed at any moment. Nobody outlives the run:
every child is waited for, and dies with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

HUNG = 120.0  # seconds; what takes so long in a world of a tenth of a second will not end
KILLED = -signal.SIGKILL


class Wrong(Exception):
    """What was promised does not hold."""


@dataclass(frozen=True)
class Ended:
    status: int  # of the process; negative: the signal that killed it
    out: str
    err: str

    @property
    def one_line(self) -> bool:
        """It ended with a line that says what is wrong, as people are promised; warnings may stand before it."""
        said = [line for line in self.err.splitlines() if line.startswith("offbeat: ")]
        return (
            self.status in (1, 2)
            and len(said) == 1
            and "a bug in offbeat" not in said[0]
            and "Traceback" not in self.err + self.out
        )


def call(*arguments: object) -> Callable[[], int]:
    """`offbeat ARGUMENTS`, for a child."""

    def work() -> int:
        from offbeat.cli import main

        sys.argv = ["offbeat", *map(str, arguments)]
        main()
        return 0

    return work


def child(work: Callable[[], int], kill_after: float | None = None) -> Ended:
    """What becomes of `work` in a process of its own; it may be killed after some seconds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_a_child(work, out.fileno(), err.fileno(), parent)
        status = _wait(pid, kill_after)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if status == KILLED and kill_after is None and "(killed on purpose)" not in texts[1]:
        raise Wrong(f"it hung for {HUNG:.0f} s; it had said: {texts[1][-300:] or 'nothing'}")
    return Ended(status, *texts)


def die() -> None:
    """SIGKILL to oneself."""
    os.write(2, b"(killed on purpose)")
    os.kill(os.getpid(), signal.SIGKILL)


def _be_a_child(work: Callable[[], int], out: int, err: int, parent: int) -> None:
    status = 70
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: with the parent it dies
        if os.getppid() != parent:
            os._exit(status)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        status = work()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _wait(pid: int, kill_after: float | None) -> int:
    deadline = time.monotonic() + (HUNG if kill_after is None else kill_after)
    pause = 0.001
    try:
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
