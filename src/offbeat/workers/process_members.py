"""Processes of the worker `processes`, as their parent sees them: how one is forked, given jobs, and ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from offbeat.core.jobs import Job
from offbeat.core.threads import one_thread
from offbeat.workers.forked_process import IGNORED, Slot, Train, fields_of, libc, live, send
from offbeat.workers.job_blocks import Block
from offbeat.workers.job_queue import DEPTH
from offbeat.workers.shared_memory_codec import Arena, pack

SMALL = 1 << 14  # bytes that a pipe takes though nobody reads it yet
ROOM = (8, 2, 0)  # models in shared memory for a job, and for its answer; less where that much is not to be had


class Member:
    """A process, as its parent sees it."""

    def __init__(self, pid: int, pipe: Connection, slots: list[Slot]) -> None:
        self.pid, self.pipe, self.slots = pid, pipe, slots
        self.free = list(range(len(slots)))
        self.jobs: deque[tuple[int, int, float]] = deque()  # (slot, ticket, due), in the order they were sent

    def load(self) -> int:
        return len(self.jobs)

    def take(self, job: Job | Block, due: float, known: dict[int, int]) -> bool:
        """False if it is too much to be sent before the process listens again: both would wait for the other."""
        slot = self.free[-1]
        parcel = pack(fields_of(job), self.slots[slot][0], known, exact=True)
        if self.jobs and parcel.size > SMALL:
            return False
        send(self.pipe, slot, job.ticket, parcel)
        self.free.pop()
        self.jobs.append((slot, job.ticket, due))
        return True

    def end(self) -> str:
        """In words, how it ended; killed if it did not yet."""
        self.pipe.close()
        try:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if not done:
                os.kill(self.pid, signal.SIGKILL)
                _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # somebody else has waited for it: the number may be another's by now
            return "died"
        code = os.waitstatus_to_exitcode(status)
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"


def fork(train: Train, model: int, known: list[Any], members: list[Member]) -> Member:
    """One more of these. `model`: bytes of one. Under one thread, so that the fork has one, whatever torch did before.

    It is among the members before a Ctrl-C is heard: nobody would end it otherwise.
    """
    ours, theirs = Pipe()
    slots = [(_arena(model), _arena(model)) for _ in range(DEPTH)]
    parent, system = os.getpid(), libc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with one_thread(), _blocked(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other threads: nothing of theirs is used there
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            live(train, theirs, slots, known, [ours, *(other.pipe for other in members)], parent, system)
        members.append(Member(pid, ours, slots))
    theirs.close()
    return members[-1]


def _arena(model: int) -> Arena:
    for models in ROOM:
        with suppress(OSError, ValueError, OverflowError):
            return Arena(models * model + (SMALL if models else 0))
    return Arena(0)  # tensors go through the pipe


@contextmanager
def _blocked() -> Iterator[None]:
    """Signals that a fork will ignore are handled afterwards: no handler of ours may run there, nor before the fork is
    known here. A mask alone is one thread's, and Python's handlers run in the main thread whoever was sent the signal.
    """
    heard: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in IGNORED} if main else {}
    ours = {number: handler for number, handler in handlers.items() if handler is not None}  # None: not Python's
    try:
        for number in ours:
            signal.signal(number, lambda number, frame: heard.append(number))
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for sent in heard:
            signal.raise_signal(sent)


def end_all(members: list[Member], owner: int) -> None:
    """At once: they hold nothing. Not those of another process, of which this may be a fork."""
    while members and os.getpid() == owner:
        members.pop().end()
