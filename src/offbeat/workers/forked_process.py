"""A process of the worker `processes`, from its first moment to its last.

It is a fork of the run: it has the trainer, the data and every class of the user's already. It hears jobs on its pipe,
trains them one after the other, answers, and ends with the pipe, or with its parent, however that ends. Nothing of
what it inherited is closed, flushed or collected here: it is the parent's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from struct import Struct
from typing import Any, NoReturn

from offbeat.core.errors import in_words
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.threads import unfit
from offbeat.engine.process_memory import keep_freed
from offbeat.workers.inline import computed
from offbeat.workers.job_blocks import Block
from offbeat.workers.shared_memory_codec import Arena, Parcel, Unsendable, pack, unpack

HEADER = Struct("<BqI")  # slot of a job, or kind of an answer; ticket; tensors that follow apart
ANSWER, STAYS, NO_MEMORY, UNFIT = range(4)
GONE = (EOFError, OSError)  # what a pipe says when nobody is at its other end
SET_PARENT_DEATH_SIGNAL = 1
RICH = "rich.file_proxy"  # what standard streams are while a progress bar is drawn
FAULT = 70  # how a process ends that something else than its parent ended
IGNORED = (signal.SIGINT, signal.SIGTERM)  # the parent says when to stop

Train = Callable[[Any], Any]  # of a job, or of a block of them
Slot = tuple[Arena, Arena]  # of a job on its way there, and of its answer


def libc() -> ctypes.CDLL:
    """Found before the fork: afterwards as little as possible is imported."""
    return ctypes.CDLL(None)


def fields_of(job: Job | Block) -> tuple[Any, ...]:
    """A job, or a block, as it travels. Mappings become dicts: some kinds cannot be sent."""
    if isinstance(job, Block):
        return job.ticket, tuple(map(fields_of, job.jobs))
    work = job.work
    todo = work.steps, work.epochs, work.lr, work.rule, dict(work.extras)
    rest = job.base_version, todo, job.num_examples, dict(job.memory), job.seed, job.started
    return job.ticket, job.client, job.index, job.base, *rest


def job_of(fields: tuple[Any, ...]) -> Job | Block:
    if len(fields) == 2:
        return Block(fields[0], tuple(map(job_of, fields[1])))  # type: ignore[arg-type]
    ticket, client, index, base, base_version, todo, num_examples, memory, seed, started = fields
    return Job(ticket, client, index, base, base_version, LocalWork(*todo), num_examples, memory, seed, started)


def send(pipe: Connection, kind: int, ticket: int, parcel: Parcel) -> None:
    pipe.send_bytes(HEADER.pack(kind, ticket, len(parcel.apart)) + parcel.body)
    for tensor in parcel.apart:
        pipe.send_bytes(tensor)


def receive(pipe: Connection) -> tuple[int, int, memoryview, list[bytes]]:
    """(slot or kind, ticket, body, tensors apart), all of it, so that the next message begins where it should."""
    message = memoryview(pipe.recv_bytes())
    kind, ticket, apart = HEADER.unpack_from(message)
    return kind, ticket, message[HEADER.size :], [pipe.recv_bytes() for _ in range(apart)]


def live(
    train: Train,
    pipe: Connection,
    slots: Sequence[Slot],
    known: Sequence[Any],
    parents_ends: Sequence[Connection],
    parent: int,
    system: ctypes.CDLL,
) -> NoReturn:
    """What a fork does instead of returning. Signals are blocked until they are ignored here."""
    status = FAULT
    try:
        system.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() == parent:  # or it was gone before that could be noticed
            keep_freed()
            gc.freeze()  # garbage of the parent's stays: collected here, it would be closed here
            for number in IGNORED:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
            for end in parents_ends:
                os.close(end.fileno())  # or the others would not hear it when the parent is gone
            _own_streams()
            _serve(train, pipe, slots, known)
        status = 0
    except GONE:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # no handlers, no buffers: they are the parent's


def _serve(train: Train, pipe: Connection, slots: Sequence[Slot], known: Sequence[Any]) -> None:
    if (reason := unfit()) is not None:
        send(pipe, UNFIT, 0, Parcel(reason.encode(), []))
        return
    while True:
        number, ticket, body, apart = receive(pipe)
        inbox, outbox = slots[number]
        try:
            kind, parcel = _computed(train, body, apart, inbox, outbox, known)
        except Unsendable as reason:
            kind, parcel = STAYS, Parcel(str(reason).encode(), [])
        except MemoryError as error:
            kind, parcel = NO_MEMORY, Parcel(str(error).encode(), [])
        send(pipe, kind, ticket, parcel)
        _flush()


def _computed(
    train: Train, body: memoryview, apart: list[bytes], inbox: Arena, outbox: Arena, known: Sequence[Any]
) -> tuple[int, Parcel]:
    try:
        job = job_of(unpack(body, apart, inbox, known, copy=False))
    except MemoryError:
        raise
    except Exception as error:  # a class that came into being after this process
        raise Unsendable(in_words(error)) from None
    return ANSWER, pack(computed(train, job), outbox)


def _own_streams() -> None:
    """What models print is printed. But the parent's streams may hold half a line, and a lock that nobody here gives
    back: these are new ones on the same file. Others (a notebook's, a text that collects) are left as they are.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        given = getattr(sys, name)
        real = given is not None and (given is getattr(sys, f"__{name}__") or type(given).__module__ == RICH)
        if real:
            with contextlib.suppress(OSError):
                setattr(sys, name, open(number, "w", buffering=1, closefd=False, errors="replace"))  # noqa: SIM115


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
