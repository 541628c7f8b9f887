"""One question, one answer, between processes of one machine: a Unix socket that only its owner may use.

Standard library only: the process that asks is started anew for every message, and must be quick to start.

    question: 8 bytes of length, the bytes        answer: 1 byte (0: fine, 1: what went wrong), 8 bytes of length, bytes
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LIMIT = 1 << 32  # bytes
FINE, WRONG = 0, 1
LENGTH, HEAD = struct.Struct(">Q"), struct.Struct(">BQ")
LONGEST = 100  # bytes of a path that fit into a socket's address, with some to spare
GLANCE = 0.5  # seconds between two looks at the parent
DROPS = 3  # answers in a row that break off before it is the question's fault


class SocketError(Exception):
    """Nobody answers, or what is answered is that something went wrong. One line."""


def ask(path: str | os.PathLike[str], data: bytes, patience: float = 30.0, limit: int = LIMIT) -> bytes:
    """The answer, however long it takes, as long as somebody is there.

    Who listens may be started anew meanwhile: for `patience` seconds the question is put again, which a trainer that
    keeps its last result does not mind.
    """
    drops, alone_since = 0, time.monotonic()
    while True:
        why: object
        try:
            with _connected(path) as connection:
                alone_since = time.monotonic()
                try:
                    return _asked(connection, data, limit)
                except (OSError, EOFError) as error:
                    drops, why = drops + 1, error
                    alone_since = time.monotonic()
        except OSError as error:
            why = error.strerror or error
        if drops >= DROPS:
            raise SocketError(f"the trainer at {os.fspath(path)} broke off {drops} times: {why}")
        if time.monotonic() - alone_since >= patience:
            raise SocketError(f"no trainer listens at {os.fspath(path)}: {why}")
        time.sleep(min(0.1, patience))


def serve(
    handle: Callable[[bytes], bytes],
    path: str | os.PathLike[str],
    ended: threading.Event,
    parent: int | None = None,
    limit: int = LIMIT,
) -> None:
    """Answer questions, a thread each, until `ended` is set or the process `parent` is no longer ours."""
    with _listening(path) as listener:
        while not ended.is_set() and (parent is None or os.getppid() == parent):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=_answer, args=(connection, handle, limit), daemon=True).start()


def _answer(connection: socket.socket, handle: Callable[[bytes], bytes], limit: int) -> None:
    with connection, contextlib.suppress(OSError, EOFError):  # who asked is gone
        connection.settimeout(None)
        status, answer = FINE, b""
        (length,) = LENGTH.unpack(_read(connection, LENGTH.size))
        try:
            question = _message(connection, length, limit)
            try:
                answer = handle(question)
            except OSError as error:  # of what it did, not of this connection
                raise SocketError(str(error)) from error
        except (OSError, EOFError):
            raise
        except Exception as error:
            status, answer = WRONG, (str(error) or type(error).__name__).encode(errors="replace")
        connection.sendall(HEAD.pack(status, len(answer)))
        connection.sendall(answer)


def _asked(connection: socket.socket, data: bytes, limit: int) -> bytes:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have said already that it is too much
        connection.sendall(LENGTH.pack(len(data)))
        connection.sendall(data)
    status, length = HEAD.unpack(_read(connection, HEAD.size))
    answer = _message(connection, length, limit)
    if status != FINE:
        raise SocketError(bytes(answer).decode(errors="replace"))
    return answer


def _message(connection: socket.socket, length: int, limit: int) -> bytes:
    if length > limit:
        raise SocketError(f"a message of {length} bytes, over the limit of {limit}")
    return bytes(_read(connection, length))


def _read(connection: socket.socket, length: int) -> bytearray:
    whole, at = bytearray(length), 0
    view = memoryview(whole)
    while at < length:
        taken = connection.recv_into(view[at : at + (1 << 20)])
        if taken == 0:
            raise EOFError("the connection ended in the middle of a message")
        at += taken
    return whole


@contextlib.contextmanager
def _connected(path: str | os.PathLike[str]) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with _short(Path(path)) as address:
            connection.connect(address)
        yield connection


@contextlib.contextmanager
def _listening(path: str | os.PathLike[str]) -> Iterator[socket.socket]:
    place = Path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _clear(place)
        with _short(place) as address:
            listener.bind(address)
        own = os.stat(place).st_ino
        os.chmod(place, 0o600)  # before anybody can connect: it does not listen yet
        listener.listen(16)
        listener.settimeout(GLANCE)
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if os.stat(place).st_ino == own:  # not another trainer's by now
                    os.unlink(place)


def _clear(place: Path) -> None:
    """A socket whose owner was killed is in the way of the next; one that is listened to is not ours."""
    try:
        held = os.lstat(place)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(held.st_mode):
        raise SocketError(f"{place} is in the way: it is no socket")
    try:
        with _connected(place):
            raise SocketError(f"a trainer is listening at {place} already")
    except OSError:
        os.unlink(place)


@contextlib.contextmanager
def _short(place: Path) -> Iterator[str]:
    """The path, or a short way to say it: addresses of sockets have room for about a hundred bytes."""
    if len(os.fsencode(place)) <= LONGEST or not os.path.isdir("/proc/self/fd"):
        yield os.fspath(place)
        return
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)
