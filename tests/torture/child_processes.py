"""Child processes that call the command line and may be killed at any moment.

They are forked from a process that has imported everything and loaded the data, so a run takes only its own time. Every
child is waited for, and dies with its parent.
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

CHILD_TIMEOUT = 120.0  # seconds; an undisturbed run takes a tenth of a second
KILLED = -signal.SIGKILL


class PromiseBroken(Exception):
    """A guarantee about runs does not hold."""


@dataclass(frozen=True)
class ChildResult:
    """Exit status and output of a child."""

    status: int  # negative: the signal that killed the process
    out: str
    err: str

    @property
    def one_line(self) -> bool:
        """Whether the child failed with one line that describes the error, possibly after warnings."""
        lines = [line for line in self.err.splitlines() if line.startswith("offbeat: ")]
        return (
            self.status in (1, 2)
            and len(lines) == 1
            and "a bug in offbeat" not in lines[0]
            and "Traceback" not in self.err + self.out
        )


def offbeat_call(*arguments: object) -> Callable[[], int]:
    """Return a function that calls `offbeat ARGUMENTS` in a child."""

    def work() -> int:
        from offbeat.cli import main

        sys.argv = ["offbeat", *map(str, arguments)]
        main()
        return 0

    return work


def run_child(work: Callable[[], int], kill_after: float | None = None) -> ChildResult:
    """Run `work` in a child process, optionally kill it after some seconds, and return its result."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _run_in_child(work, out.fileno(), err.fileno(), parent)
        status = _wait(pid, kill_after)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if status == KILLED and kill_after is None and "(killed on purpose)" not in texts[1]:
        raise PromiseBroken(f"no end after {CHILD_TIMEOUT:.0f} s; output: {texts[1][-300:] or 'none'}")
    return ChildResult(status, *texts)


def kill_self() -> None:
    """Kill this process with SIGKILL."""
    os.write(2, b"(killed on purpose)")
    os.kill(os.getpid(), signal.SIGKILL)


def _run_in_child(work: Callable[[], int], out: int, err: int, parent: int) -> None:
    status = 70
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the parent
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
    deadline = time.monotonic() + (CHILD_TIMEOUT if kill_after is None else kill_after)
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
