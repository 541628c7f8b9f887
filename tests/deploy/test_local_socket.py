"""Questions and answers between processes: large ones, broken ones, and nobody left behind when a parent dies."""

from __future__ import annotations

import os
import signal
import socket as plain
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy import messages
from offbeat.deploy import local_socket
from waiting import MAX_WAIT_SECONDS, wait_until


@contextmanager
def serving(path: Path, handle: Callable[[bytes], bytes], **options: int) -> Iterator[threading.Event]:
    ended = threading.Event()
    thread = threading.Thread(target=local_socket.serve, args=(handle, path, ended), kwargs=options)
    thread.start()
    try:
        wait_until(lambda: listens(path))
        yield ended
    finally:
        ended.set()
        thread.join(MAX_WAIT_SECONDS)
        assert not thread.is_alive()


def listens(path: Path) -> bool:
    """A socket has its name before anybody can connect to it."""
    if len(str(path)) > 100:
        return path.exists()  # no address for a plain socket
    with plain.socket(plain.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def test_a_question_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path / "s", bytes.upper):
        assert local_socket.ask(tmp_path / "s", b"hello") == b"HELLO"
        assert local_socket.ask(tmp_path / "s", b"") == b""


def test_forty_megabytes_go_there_and_back(tmp_path: Path) -> None:
    large = os.urandom(1 << 20) * 40
    with serving(tmp_path / "s", lambda data: data[::-1]):
        assert local_socket.ask(tmp_path / "s", large) == large[::-1]


def test_what_goes_wrong_is_told_and_the_next_question_is_answered(tmp_path: Path) -> None:
    def handle(data: bytes) -> bytes:
        if data == b"disk":
            raise OSError(28, "No space left on device")
        if data == b"bad":
            raise ValueError("no such thing")
        return data

    with serving(tmp_path / "s", handle):
        with pytest.raises(local_socket.SocketError, match="no such thing"):
            local_socket.ask(tmp_path / "s", b"bad")
        with pytest.raises(local_socket.SocketError, match="No space left"):
            local_socket.ask(tmp_path / "s", b"disk")
        assert local_socket.ask(tmp_path / "s", b"good") == b"good"


def test_a_claim_beyond_the_limit_takes_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path / "s", bytes.upper, limit=10):
        with plain.socket(plain.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "s"))
            connection.sendall((1 << 62).to_bytes(8, "big"))
            status, length = local_socket.HEAD.unpack(connection.recv(9, plain.MSG_WAITALL))
            assert status == local_socket.FAILED
            assert b"over the limit of 10" in connection.recv(length, plain.MSG_WAITALL)
        with pytest.raises(local_socket.SocketError, match=messages.MESSAGE_TOO_LONG):
            local_socket.ask(tmp_path / "s", b"elevenbytes")
        assert local_socket.ask(tmp_path / "s", b"ten") == b"TEN"


def test_who_breaks_off_harms_nobody(tmp_path: Path) -> None:
    with serving(tmp_path / "s", bytes.upper):
        for sent in (b"", b"\0\0\0", (100).to_bytes(8, "big") + b"half"):
            with plain.socket(plain.AF_UNIX) as connection:
                connection.connect(str(tmp_path / "s"))
                connection.sendall(sent)
        assert local_socket.ask(tmp_path / "s", b"still here") == b"STILL HERE"


def test_only_its_owner_may_use_it(tmp_path: Path) -> None:
    with serving(tmp_path / "s", bytes.upper):
        assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o600
    assert not (tmp_path / "s").exists()


def test_a_path_longer_than_a_sockets_address_works(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    folder.mkdir(parents=True)
    with serving(folder / "s", bytes.upper):
        assert local_socket.ask(folder / "s", b"far") == b"FAR"


def test_nobody_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(local_socket.SocketError, match=messages.NO_TRAINER):
        local_socket.ask(tmp_path / "s", b"?", patience=0.0)


def test_the_socket_of_a_killed_trainer_is_taken_over_and_a_live_ones_is_not(tmp_path: Path) -> None:
    with plain.socket(plain.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    with serving(tmp_path / "s", bytes.upper):
        wait_until(lambda: _answers(tmp_path / "s"))
        with pytest.raises(local_socket.SocketError, match=messages.TRAINER_EXISTS):
            local_socket.serve(bytes.upper, tmp_path / "s", threading.Event())
        assert local_socket.ask(tmp_path / "s", b"first") == b"FIRST"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(local_socket.SocketError, match=messages.NO_SOCKET):
        local_socket.serve(bytes.upper, tmp_path / "file", threading.Event())


def _answers(path: Path) -> bool:
    try:
        return local_socket.ask(path, b"x", patience=0.0) == b"X"
    except local_socket.SocketError:
        return False


def test_a_question_is_put_again_when_the_trainer_is_started_anew(tmp_path: Path) -> None:
    """The first trainer breaks off before it has answered; the second one answers."""
    path, heard = tmp_path / "s", threading.Event()

    def broken() -> None:
        with plain.socket(plain.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            connection, _ = listener.accept()
            connection.recv(5)
            connection.close()
        heard.set()

    first = threading.Thread(target=broken)
    first.start()
    wait_until(path.exists)
    answers: list[bytes] = []
    asking = threading.Thread(
        target=lambda: answers.append(local_socket.ask(path, b"again", patience=MAX_WAIT_SECONDS))
    )
    asking.start()
    heard.wait(MAX_WAIT_SECONDS)
    with serving(path, bytes.upper):
        asking.join(MAX_WAIT_SECONDS)
    first.join(MAX_WAIT_SECONDS)
    assert answers == [b"AGAIN"]


PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import sys, threading
from offbeat.deploy import local_socket
local_socket.serve(bytes.upper, sys.argv[1], threading.Event(), parent=int(sys.argv[2]))
''', sys.argv[1], str(os.getpid())])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_until(lambda: _answers(tmp_path / "s"))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not (tmp_path / "s").exists())  # it took its socket with it: it ended by itself
    wait_until(lambda: not _alive(child))


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_asking_imports_nothing_heavy() -> None:
    """A process is started for every message: it must not take seconds."""
    script = (
        "import sys; import offbeat.deploy.local_socket; "
        "print([name for name in ('torch', 'numpy', 'yaml', 'pydantic', 'flwr') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
    assert done.stdout.strip() == "[]"
