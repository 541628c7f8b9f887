"""Several runs at once, in a few processes that share no lock.

A pool with one queue for all has locks, and whoever is killed while holding one never gives it back: the rest would
wait for ever. Here each process has a pipe of its own to the parent. The death of either side is the end of the pipe,
which the other side hears; a process without work is sent home at once.

Runs of a script's own model and data go on in forks, which have these already: a new process would have to run the
script once more. Where a fork cannot train, they go one after the other.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from offbeat.core.errors import OffbeatError, RunError
from offbeat.core.threads import explain_fork_failure
from offbeat.engine.process_memory import keep_freed_memory
from offbeat.engine.progress import Status
from offbeat.engine.virtual.virtual_engine import INTERRUPTED
from offbeat.experiment.run import execution as runs
from offbeat.experiment.spec import user_code
from offbeat.workers.wrappers import Work

log = logging.getLogger("offbeat")

GONE = (EOFError, OSError)  # what a pipe says when nobody is at its other end

Progress = Callable[[list[float], Work], Any]  # told the share of each run that is done, and what was computed


@dataclass(frozen=True)
class Board:
    """What the processes tell the parent: each cell has one writer."""

    shares: Any
    work: Any  # steps, jobs and batches of each run
    stop: Any  # which the parent writes

    def put(self, index: int, share: float, work: Work) -> None:
        self.shares[index] = share
        self.work[3 * index : 3 * index + 3] = astuple(work)

    def total(self) -> Work:
        return Work(*(sum(self.work[part::3]) for part in range(3)))


class Unfit(Exception):
    """Forks of this process cannot train. No run was touched."""


def possible(several: Sequence[runs.Run]) -> bool:
    """Can they go on in other processes, as far as that can be said without one?"""
    return sys.platform == "linux" or all(run.script is None for run in several)


def execute(
    several: list[runs.Run],
    jobs: int,
    on_progress: Progress | None = None,
    workers: Sequence[str] = (),
    memory: str | None = None,
) -> bool:
    """Finish every run that is not complete, so many at a time; False if they were interrupted. `workers`: of each run.
    A run that fails leaves the others going, and is told at the end. Unfit where forks were needed and cannot train.
    """
    todo = [i for i, run in enumerate(several) if not run.complete]
    forked = any(run.script is not None for run in several)
    context: Any = multiprocessing.get_context("fork" if forked else "spawn")
    shares: Any = context.RawArray("d", [float(i not in todo) for i in range(len(several))])
    board = Board(shares, context.RawArray("q", 3 * len(several)), context.RawValue("b", False))
    crew: dict[Connection, BaseProcess] = {}
    at: dict[Connection, int] = {}  # whose run each process is at
    failed: dict[int, Exception] = {}
    # a termination is a Ctrl-C: left to itself it would leave the processes of the runs behind
    with _handling(signal.SIGTERM, signal.default_int_handler):
        try:
            with _not_yet():
                for _ in range(min(jobs, len(todo))):
                    ours, theirs = context.Pipe()
                    inherited = several if forked else []
                    told = (theirs, board, os.getpid(), memory, inherited, [*crew, ours] if forked else [])
                    process = context.Process(target=_work, args=told)
                    process.start()
                    theirs.close()
                    crew[ours] = process
            waiting = iter([(i, str(several[i].folder), workers[i] if workers else None) for i in todo])
            for pipe in crew:
                _hand_over(pipe, next(waiting, None), at)
            while at:
                for heard in wait(list(at), timeout=0.2):
                    assert isinstance(heard, Connection)
                    pipe = heard
                    answer = _heard(pipe)
                    if isinstance(answer, Unfit):
                        raise answer
                    if isinstance(answer, Exception):
                        log.warning("%s", runs.describe_failure(several[at[pipe]].folder, answer))
                        failed[at[pipe]] = answer
                    elif not answer:
                        return False
                    _hand_over(pipe, next(waiting, None), at)
                if on_progress is not None:
                    on_progress(list(shares), board.total())
        except KeyboardInterrupt:
            return False
        finally:
            board.stop.value = True  # whoever is running writes a checkpoint and ends
            for pipe in crew:
                pipe.close()
            for member in crew.values():
                member.join()
    runs.raise_failures({several[i].folder: error for i, error in failed.items()})
    return True


def _hand_over(pipe: Connection, task: tuple[int, str, str | None] | None, at: dict[Connection, int]) -> None:
    """Give a process its next run, or send it home where there is none left."""
    at.pop(pipe, None)
    if task is None:
        pipe.close()
        return
    try:
        pipe.send(task)
    except GONE:
        raise _died() from None
    at[pipe] = task[0]


def _heard(pipe: Connection) -> bool | Exception:
    """A process's answer: whether its run came to an end, or why not."""
    try:
        answer: bool | Exception = pipe.recv()
    except GONE:
        raise _died() from None
    return answer


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


@contextlib.contextmanager
def _not_yet() -> Iterator[None]:
    """A Ctrl-C comes when this is over, and is not lost; whoever is started meanwhile begins with it held back, for the
    parent says when to stop. Held back here alone it would come through another thread.
    """
    came = list[int]()
    with _handling(signal.SIGINT, lambda number, _: came.append(number)):
        resource_tracker.ensure_running()  # which would let it through, were it started in between
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if came:
        raise KeyboardInterrupt


# ---------------------------------------------------------------- in a process of the crew


def _work(
    pipe: Connection,
    board: Board,
    parent: int,
    memory: str | None,
    several: Sequence[runs.Run],
    parents_ends: Sequence[Connection],
) -> None:
    """One run after the other, until the parent closes the pipe or is gone. A fork has `several` runs from its parent,
    with what a script gave, and ends of pipes that only the parent may hold.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for end in parents_ends:
        end.close()
    keep_freed_memory()
    if several:
        torch.set_num_threads(1)  # the threads of the parent are not here: who waited for them would wait for ever
        gc.freeze()  # garbage of the parent's stays: collected here, it would be closed here
    reason = explain_fork_failure() if several else None
    with contextlib.suppress(*GONE, KeyboardInterrupt):
        while True:
            index, folder, worker = pipe.recv()
            run = several[index] if several else runs.Run(Path(folder))
            pipe.send(Unfit(reason) if reason else _answer(index, run, worker, board, parent, memory))


def _answer(
    index: int, run: runs.Run, worker: str | None, board: Board, parent: int, memory: str | None
) -> bool | Exception:
    work = Work()

    def stopped() -> bool:
        return bool(board.stop.value) or os.getppid() != parent  # told to, or the parent was killed over our head

    def watch(status: Status) -> bool:
        board.put(index, status.share, work)
        return stopped()

    if stopped():
        return False
    try:
        outcome = runs.execute_run(run, watch, worker=worker, memory=memory, work=work)
    except Exception as error:
        return _sendable(error)
    if outcome is not None and outcome.reason == INTERRUPTED:
        return False
    board.put(index, 1.0, work)
    return True


def _sendable(error: Exception) -> Exception:
    """Errors of ours travel as they are; others may hold what cannot."""
    said = None if isinstance(error, OffbeatError) else user_code.describe_user_error(error)
    sent = error if isinstance(error, OffbeatError) else RuntimeError(f"{type(error).__name__}: {error}")
    if said is not None:
        sent = RunError(said)
    sent.add_note(traceback.format_exc())  # where it happened does not travel by itself
    return sent
