"""Processes of a server or a site: started with what they need, and gone when it is gone, however it ends."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from offbeat.core.errors import ConfigError, RunError
from offbeat.deploy import orphan_reaper

# the commands that Flower starts by name
SCRIPTS = ("flower-superexec", "flwr-serverapp", "flwr-clientapp", "flwr-simulation")
POLL = "0.25"  # seconds between two looks of a superexec for something to start; its own default is 1
PATIENCE = 5.0  # seconds to end by itself


class Children:
    """Processes that cannot outlive this one: a guardian waits at the end of a pipe, and who is left then is killed.

    Each writes into a log of its own below `home`. They stand in sessions of their own, so that Ctrl-C reaches only
    this process, which ends them in good order.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.logs = home / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.mark = secrets.token_hex(8)
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        _write_scripts(home / "bin")
        self._guardian = self._watch()

    def _watch(self) -> subprocess.Popen[bytes]:
        """Not marked itself: it must outlive them."""
        command = [sys.executable, "-I", "-S", orphan_reaper.__file__, self.mark]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def environment(self) -> dict[str, str]:
        """Of every child: quiet, its Flower home here, its commands found, its mark."""
        own = os.environ
        above = own.get(orphan_reaper.VARIABLE, "")
        return {
            **own,
            orphan_reaper.VARIABLE: f"{above}:{self.mark}".lstrip(":"),
            "PATH": os.pathsep.join((str(self.home / "bin"), own.get("PATH", os.defpath))),
            "FLWR_HOME": str(self.home / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL,
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": ",".join(filter(None, (own.get("NO_PROXY"), "127.0.0.1", "localhost", "::1"))),
            "NO_COLOR": "1",
        }

    def start(
        self, name: str, command: Sequence[str], more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """In the background; what it says goes to logs/NAME.log."""
        self.look_after()
        with open(self.logs / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.environment(), **(more or {})},
                start_new_session=True,
            )
        self.started[name] = child
        return child

    def flower(
        self, command: str, *arguments: str, name: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """One of Flower's commands, in the background."""
        return self.start(name, flower(command, *arguments), more)

    def ask(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """One of Flower's commands to its end, with what it said."""
        try:
            return subprocess.run(
                flower(*arguments),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                env=self.environment(),
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"'{' '.join(arguments[:2])}' did not end within {timeout:.0f} seconds") from None

    def secret(self) -> Path:
        """What a superexec proves itself with to its SuperLink or SuperNode, drawn anew for every start of a server or
        a site: no other user of this machine can take work from it.
        """
        path = self.home / "superexec.secret"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        return path

    def look_after(self) -> None:
        """A guardian that was killed has a successor."""
        if self._guardian.poll() is not None:
            self._guardian = self._watch()

    def alive(self, name: str) -> bool:
        return name in self.started and self.started[name].poll() is None

    def last_words(self, name: str, lines: int = 1) -> str:
        """The last lines of a log, for a message."""
        return last_lines(self.logs / f"{name}.log", lines)

    def stop(self, name: str, patience: float = PATIENCE) -> None:
        """One of them, politely first."""
        child = self.started.pop(name, None)
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def close(self) -> None:
        """All of them, and whomever they have started: nobody is left when this returns."""
        before = signal.getsignal(signal.SIGINT) if _main_thread() else None
        if before is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C must not leave half of them
        try:
            orphan_reaper.end(self.mark, PATIENCE)
            for child in self.started.values():
                child.wait()
            assert self._guardian.stdin is not None
            self._guardian.stdin.close()
            self._guardian.wait()
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def flower(name: str, *arguments: str) -> list[str]:
    """The command line that runs one of Flower's commands with this Python."""
    return [sys.executable, "-m", "offbeat.deploy.flower_command", name, *arguments]


def _write_scripts(folder: Path) -> None:
    """What Flower starts by name, so that nobody has to set PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m offbeat.deploy.flower_command {name} "$@"\n')
        script.chmod(0o700)


def last_lines(path: Path, lines: int = 1) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(said[-lines:])


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def refuse_taken(host: str, port: int) -> None:
    """Say in one line why nobody could listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the door: connections that linger do not count
        try:
            probe.bind((host, port))
        except socket.gaierror:
            raise ConfigError(f"--host {host}: this machine has no such address or name") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} of {host} is in use: choose another with --port") from None
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f"--host {host}: this machine has no such address") from None
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def answers(host: str, port: int, timeout: float = 1.0) -> bool:
    try:
        with socket.create_connection((host, port), timeout):
            return True
    except OSError:
        return False


def until(condition: object, seconds: float, every: float = 0.1) -> bool:
    """Does it come true within so many seconds?"""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(every)
    return True
