"""Several runs at once, in a few processes that share no lock.

A pool with one queue for all has locks, and whoever is killed while holding one never gives it back: the rest would
wait for ever. Here each process has a pipe of its own to the parent. The death of either side is the end of the pipe,
which the other side hears; a process without work is sent home at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from offbeat.core.errors import OffbeatError
from offbeat.engines.progress import Status
from offbeat.engines.virtual import INTERRUPTED
from offbeat.experiment import run as runs

GONE = (EOFError, OSError)  # what a pipe says when nobody is at its other end


Progress = Callable[[list[float]], Any]  # told the share of each run that is done


def execute(
    folders: list[Path], jobs: int | None = None, on_progress: Progress | None = None, worker: str | None = None
) -> bool:
    """Finish every run that is not complete; False if they were interrupted. `worker`: of every run, instead of those
    they were begun with.
    """
    todo = [i for i, folder in enumerate(folders) if not runs.Run(folder).complete]
    context = multiprocessing.get_context("spawn")
    shares: Any = context.RawArray("d", [float(i not in todo) for i in range(len(folders))])  # each cell has one writer
    stop: Any = context.RawValue("b", False)
    crew: dict[Connection, BaseProcess] = {}
    # a termination is a Ctrl-C: left to itself it would leave the processes of the runs behind
    with _handling(signal.SIGTERM, signal.default_int_handler):
        try:
            with _handling(signal.SIGINT, signal.SIG_IGN):  # inherited: the parent says when to stop
                for _ in range(min(jobs or os.cpu_count() or 1, len(todo))):
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_work, args=(theirs, shares, stop, os.getpid(), worker))
                    process.start()
                    theirs.close()
                    crew[ours] = process
            waiting = iter([(i, str(folders[i])) for i in todo])
            busy = {pipe for pipe in crew if _hand_over(pipe, next(waiting, None))}
            while busy:
                for pipe in wait(busy, timeout=0.2):
                    assert isinstance(pipe, Connection)
                    if not _finished(pipe):
                        return False
                    if not _hand_over(pipe, next(waiting, None)):
                        busy.discard(pipe)
                if on_progress is not None:
                    on_progress(list(shares))
            return True
        except KeyboardInterrupt:
            return False
        finally:
            stop.value = True  # whoever is running writes a checkpoint and ends
            for pipe in crew:
                pipe.close()
            for member in crew.values():
                member.join()


def _hand_over(pipe: Connection, task: tuple[int, str] | None) -> bool:
    """Give a process its next run, or send it home where there is none left."""
    if task is None:
        pipe.close()
        return False
    try:
        pipe.send(task)
    except GONE:
        raise _died() from None
    return True


def _finished(pipe: Connection) -> bool:
    """A process's answer: whether its run came to an end. An error of it is raised here."""
    try:
        answer = pipe.recv()
    except GONE:
        raise _died() from None
    if isinstance(answer, BaseException):
        raise answer
    return bool(answer)


def _died() -> runs.Unfinished:
    return runs.Unfinished("a process of the comparison died (out of memory?)")


@contextlib.contextmanager
def _handling(number: int, handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


# ---------------------------------------------------------------- in a process of the crew


def _work(pipe: Connection, shares: Any, stop: Any, parent: int, worker: str | None) -> None:
    """One run after the other, until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(*GONE, KeyboardInterrupt):
        while True:
            index, folder = pipe.recv()
            pipe.send(_answer(index, folder, shares, stop, parent, worker))


def _answer(index: int, folder: str, shares: Any, stop: Any, parent: int, worker: str | None) -> bool | Exception:
    def stopped() -> bool:
        return bool(stop.value) or os.getppid() != parent  # told to, or the parent was killed over our head

    def watch(status: Status) -> bool:
        shares[index] = status.share
        return stopped()

    if stopped():
        return False
    try:
        outcome = runs.execute(runs.Run(Path(folder)), watch, worker=worker)
    except Exception as error:
        return _sendable(error)
    if outcome is not None and outcome.reason == INTERRUPTED:
        return False
    shares[index] = 1.0
    return True


def _sendable(error: Exception) -> Exception:
    """Errors of ours travel as they are; others may hold what cannot."""
    sent = error if isinstance(error, OffbeatError) else RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(traceback.format_exc())  # where it happened does not travel by itself
    return sent
