"""Request and response between two processes of one machine, over a Unix socket that only its owner may use.

This module uses only the standard library, because the asking process starts anew for every message.

    request: 8 bytes of length, the bytes        response: 1 byte (0: ok, 1: an error message), 8 bytes of length, bytes
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

MAX_MESSAGE_BYTES = 1 << 32  # bytes
OK, FAILED = 0, 1
LENGTH, HEAD = struct.Struct(">Q"), struct.Struct(">BQ")
MAX_ADDRESS_BYTES = 100  # longest path that fits into a socket address, with a margin
PARENT_POLL_SECONDS = 0.5  # between two checks that the parent still runs
MAX_DROPS = 3  # broken connections in a row until the request is given up


class SocketError(Exception):
    """No process answers, or the answer is an error; the message is one line."""


def ask(path: str | os.PathLike[str], data: bytes, patience: float = 30.0, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """Send a request and return the answer, however long it takes while a process listens.

    The listening process may be restarted: the request is repeated for `patience` seconds. This is safe because a
    trainer stores its last result.
    """
    drops, alone_since = 0, time.monotonic()
    while True:
        why: object
        try:
            with _connect(path) as connection:
                alone_since = time.monotonic()
                try:
                    return _exchange(connection, data, limit)
                except (OSError, EOFError) as error:
                    drops, why = drops + 1, error
                    alone_since = time.monotonic()
        except OSError as error:
            why = error.strerror or error
        if drops >= MAX_DROPS:
            raise SocketError(f"the trainer at {os.fspath(path)} closed the connection {drops} times: {why}")
        if time.monotonic() - alone_since >= patience:
            raise SocketError(f"no trainer listens at {os.fspath(path)}: {why}")
        time.sleep(min(0.1, patience))


def serve(
    handle: Callable[[bytes], bytes],
    path: str | os.PathLike[str],
    ended: threading.Event,
    parent: int | None = None,
    limit: int = MAX_MESSAGE_BYTES,
) -> None:
    """Answer requests, each in a thread, until `ended` is set or `parent` is no longer the parent process."""
    with _listen(path) as listener:
        while not ended.is_set() and (parent is None or os.getppid() == parent):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=_answer_question, args=(connection, handle, limit), daemon=True).start()


def _answer_question(connection: socket.socket, handle: Callable[[bytes], bytes], limit: int) -> None:
    """Read a request and send the answer of the handler, or its error."""
    with connection, contextlib.suppress(OSError, EOFError):  # the asking process has ended
        connection.settimeout(None)
        status, answer = OK, b""
        (length,) = LENGTH.unpack(_read_exactly(connection, LENGTH.size))
        try:
            question = _read_message(connection, length, limit)
            try:
                answer = handle(question)
            except OSError as error:  # raised by the handler, not by this connection
                raise SocketError(str(error)) from error
        except (OSError, EOFError):
            raise
        except Exception as error:
            status, answer = FAILED, (str(error) or type(error).__name__).encode(errors="replace")
        connection.sendall(HEAD.pack(status, len(answer)))
        connection.sendall(answer)


def _exchange(connection: socket.socket, data: bytes, limit: int) -> bytes:
    """Send a request and return the answer; raise SocketError if it is an error."""
    # the other side may already have rejected the size
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(LENGTH.pack(len(data)))
        connection.sendall(data)
    status, length = HEAD.unpack(_read_exactly(connection, HEAD.size))
    answer = _read_message(connection, length, limit)
    if status != OK:
        raise SocketError(bytes(answer).decode(errors="replace"))
    return answer


def _read_message(connection: socket.socket, length: int, limit: int) -> bytes:
    """Read the bytes of a message unless it is over the limit."""
    if length > limit:
        raise SocketError(f"a message of {length} bytes, over the limit of {limit}")
    return bytes(_read_exactly(connection, length))


def _read_exactly(connection: socket.socket, length: int) -> bytearray:
    """Read this number of bytes; raise EOFError if the connection ends before."""
    whole, at = bytearray(length), 0
    view = memoryview(whole)
    while at < length:
        taken = connection.recv_into(view[at : at + (1 << 20)])
        if taken == 0:
            raise EOFError("the connection ended within a message")
        at += taken
    return whole


@contextlib.contextmanager
def _connect(path: str | os.PathLike[str]) -> Iterator[socket.socket]:
    """Connect to the listening process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with _short_address(Path(path)) as address:
            connection.connect(address)
        yield connection


@contextlib.contextmanager
def _listen(path: str | os.PathLike[str]) -> Iterator[socket.socket]:
    """Listen at a path, which is removed afterwards."""
    path = Path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _remove_stale_socket(path)
        with _short_address(path) as address:
            listener.bind(address)
        inode = os.stat(path).st_ino
        os.chmod(path, 0o600)  # before it listens, so that no other user can connect
        listener.listen(16)
        listener.settimeout(PARENT_POLL_SECONDS)
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode:  # another trainer may have replaced it
                    os.unlink(path)


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a killed trainer; raise SocketError if another trainer still listens."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise SocketError(f"{path} exists and is not a socket")
    try:
        with _connect(path):
            raise SocketError(f"a trainer is listening at {path} already")
    except OSError:
        os.unlink(path)


@contextlib.contextmanager
def _short_address(path: Path) -> Iterator[str]:
    """Yield the path, or a shorter alias, because socket addresses hold only about a hundred bytes."""
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES or not os.path.isdir("/proc/self/fd"):
        yield os.fspath(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
