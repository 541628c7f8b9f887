"""A pool of child processes for jobs or whole runs: start them, exchange messages, notice their end, and end them.

Each process has its own pipe to its parent, and no lock is shared, because a process that is killed while it holds a
lock never releases it. If either side dies, the pipe closes, which the other side notices.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import select
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from struct import Struct
from types import FrameType
from typing import Generic, NamedTuple, NoReturn, TypeVar

from offbeat.core.threads import explain_fork_failure, one_thread
from offbeat.engine import keep_freed_memory

ANSWER, UNSENDABLE, NO_MEMORY, UNFIT, PROGRESS = range(5)  # kinds of messages to the parent
CLOSED = (EOFError, OSError)  # raised by a pipe whose other end is closed
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the parent decides when its children stop
FAULT_STATUS = 70  # exit status of a process that raised
_HEADER = Struct("<BqI")  # kind, number, count of tensors that follow
_SET_PARENT_DEATH_SIGNAL = 1
_RICH_STREAMS = "rich.file_proxy"  # module of the standard streams while a progress bar is drawn

SignalHandler = Callable[[int, FrameType | None], object] | int | None
Serve = Callable[[Connection], object]  # the work of a child process, until its pipe closes


class Message(NamedTuple):
    """A message between a process and its parent."""

    kind: int  # to the parent: a constant above; to a child: defined by its work
    number: int  # of a job or run
    body: bytes | memoryview
    tensors: Sequence[bytes] = ()


def send(pipe: Connection, message: Message) -> None:
    """Send a message; raise an error in `CLOSED` if the other end is closed."""
    pipe.send_bytes(_HEADER.pack(message.kind, message.number, len(message.tensors)) + message.body)
    for tensor in message.tensors:
        pipe.send_bytes(tensor)


def receive(pipe: Connection) -> Message:
    """Wait for a message; raise an error in `CLOSED` if the other end is closed."""
    content = memoryview(pipe.recv_bytes())
    kind, number, tensors = _HEADER.unpack_from(content)
    return Message(kind, number, content[_HEADER.size :], [pipe.recv_bytes() for _ in range(tensors)])


def decode_text(body: bytes | memoryview) -> str:
    """Decode the body of a message that is a text."""
    return bytes(body).decode(errors="replace")


# ------------------------------------------------------------ in the parent


class ChildProcess:
    """A child process as its parent sees it; `spawned` is set if it was not forked."""

    def __init__(self, pid: int, pipe: Connection, spawned: BaseProcess | None = None) -> None:
        self.pid, self.pipe, self._spawned = pid, pipe, spawned

    def end(self, kill: bool) -> str:
        """Close the pipe, wait for the end of the process, or kill it, and describe how it ended."""
        self.pipe.close()
        if self._spawned is not None:
            self._spawned.join()
            return f"ended with status {self._spawned.exitcode}"
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if not ended:
                if kill:
                    os.kill(self.pid, signal.SIGKILL)
                _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # other code has waited for it, so its id may belong to another process now
            return "died"
        code = os.waitstatus_to_exitcode(status)
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"


P = TypeVar("P", bound=ChildProcess)


class ProcessPool(Generic[P]):
    """The child processes of one owner; they end when the pool is deleted at the latest.

    With `kill`, processes are killed at the end of the pool and if the parent dies. Otherwise they notice that their
    pipe is closed, and end on their own, for example after writing a checkpoint.
    """

    def __init__(self, kill: bool) -> None:
        self.processes: list[P] = []
        self._kill = kill
        self._poll = select.poll()
        self._by_descriptor: dict[int, P] = {}
        self._finalizer = weakref.finalize(self, _end_processes, self.processes, kill, os.getpid())

    def fork(self, serve: Serve, make: Callable[[int, Connection], P]) -> P:
        """Fork a process with one thread, whose work is `serve`; it is in the pool before a Ctrl-C is handled."""
        ours, theirs = Pipe()
        inherited = [ours, *(process.pipe for process in self.processes)]
        parent, libc = os.getpid(), ctypes.CDLL(None)  # loaded before the fork
        flush_streams()
        try:
            with one_thread(), deferred_signals(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about threads of the parent, which the child does not use
                try:
                    pid = os.fork()
                except OSError:
                    ours.close()
                    raise
                if pid == 0:
                    _run_fork(serve, theirs, inherited, parent, libc, self._kill)
                return self._add(make(pid, ours))
        finally:
            theirs.close()

    def spawn(self, serve: Serve, make: Callable[[int, Connection, BaseProcess], P]) -> P:
        """Start a new Python process, on systems or for work that cannot be forked."""
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # started later, it would unblock the signals
        ours, theirs = context.Pipe()
        try:
            with deferred_signals():
                process = context.Process(target=_run_child, args=(serve, theirs, self._kill))
                process.start()
                assert process.pid is not None
                return self._add(make(process.pid, ours, process))
        finally:
            theirs.close()

    def wait(self, timeout: float | None = None) -> list[P]:
        """Wait until a process has sent a message or died, at most `timeout` seconds, and return those that have."""
        events = self._poll.poll(None if timeout is None else 1000 * timeout)
        return [self._by_descriptor[descriptor] for descriptor, _ in events]

    def remove(self, process: P) -> str:
        """End a process and describe how it ended."""
        self._poll.unregister(process.pipe.fileno())
        del self._by_descriptor[process.pipe.fileno()]
        self.processes.remove(process)
        return process.end(self._kill)

    def end(self) -> None:
        """End all processes."""
        _end_processes(self.processes, self._kill, os.getpid())
        self._poll = select.poll()
        self._by_descriptor.clear()

    def _add(self, process: P) -> P:
        """Add a process that was started."""
        self.processes.append(process)
        self._by_descriptor[process.pipe.fileno()] = process
        self._poll.register(process.pipe.fileno(), select.POLLIN)
        return process


def _end_processes(processes: list[P], kill: bool, owner: int) -> None:
    """End processes, except in a fork of their owner."""
    if os.getpid() != owner:
        return
    for process in processes:
        process.pipe.close()
    while processes:
        processes[-1].end(kill)
        processes.pop()


@contextmanager
def replaced_handlers(handlers: Mapping[signal.Signals, SignalHandler]) -> Iterator[None]:
    """Replace signal handlers inside the context; only the main thread can do this, others continue without."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM at the end of the context; processes started inside begin with them blocked.

    A signal mask applies to one thread only, and Python's handlers run in the main thread whichever thread got the
    signal. So the main thread also replaces the handlers.
    """
    received: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    numbers = (number for number in SIGNALS if signal.getsignal(number) is not None)  # None: not a handler of Python
    try:
        with replaced_handlers(dict.fromkeys(numbers, lambda number, frame: received.append(number))):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in received:
            signal.raise_signal(number)


# ------------------------------------------------------------ in a child


def _run_fork(
    serve: Serve, pipe: Connection, inherited: Sequence[Connection], parent: int, libc: ctypes.CDLL, kill: bool
) -> NoReturn:
    """Work in a forked process, and exit without closing, flushing or collecting anything of the parent."""
    status = FAULT_STATUS
    try:
        if kill:
            libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() == parent:  # otherwise the parent died before the death signal was set
            gc.freeze()  # do not collect garbage of the parent, which could close its resources
            for end in inherited:
                os.close(end.fileno())  # otherwise the other processes would not notice the parent's death
            _reopen_streams()
            _run_child(serve, pipe, kill, forked=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(status)


def _run_child(serve: Serve, pipe: Connection, kill: bool, forked: bool = False) -> None:
    """Work until the pipe closes. The parent handles Ctrl-C; it also handles SIGTERM if it kills its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if kill else signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    keep_freed_memory()
    with suppress(*CLOSED, KeyboardInterrupt):
        reason = explain_fork_failure() if forked else None
        if reason is None:
            serve(pipe)
            return
        send(pipe, Message(UNFIT, 0, reason.encode()))
        while True:
            pipe.recv_bytes()


def _reopen_streams() -> None:
    """Open new standard streams on the same files, so the output of models is printed.

    The parent's streams may contain half a line, or a lock that is never released here. Other streams, such as those
    of a notebook, stay unchanged.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None and (stream is getattr(sys, f"__{name}__") or type(stream).__module__ == _RICH_STREAMS):
            with suppress(OSError):
                setattr(sys, name, open(number, "w", buffering=1, closefd=False, errors="replace"))  # noqa: SIM115


def flush_streams() -> None:
    """Flush the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
