"""Child processes of a server or a site, which end when their parent ends, however it ends."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from offbeat.core.errors import ConfigError, RunError
from offbeat.deploy import orphan_reaper

# commands that Flower starts by name
SCRIPTS = ("flower-superexec", "flwr-serverapp", "flwr-clientapp", "flwr-simulation")
SUPEREXEC_POLL_SECONDS = "0.25"  # a superexec looks for work this often; its own default is 1 s
TERMINATE_SECONDS = 5.0  # until a process that was asked to end is killed


class ChildProcesses:
    """Child processes with logs below `home`; a reaper process kills those that are left when this process ends.

    Children have their own sessions, so Ctrl-C reaches only this process, which then ends them in order.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.logs = home / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.mark = secrets.token_hex(8)
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        _write_scripts(home / "bin")
        self._reaper = self._start_reaper()

    def _start_reaper(self) -> subprocess.Popen[bytes]:
        """Start the reaper, which carries no mark because it must outlive the children."""
        command = [sys.executable, "-I", "-S", orphan_reaper.__file__, self.mark]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of every child: PATH, the Flower home, the mark, and no telemetry."""
        environment = os.environ
        parent_marks = environment.get(orphan_reaper.MARK_VARIABLE, "")
        return {
            **environment,
            orphan_reaper.MARK_VARIABLE: f"{parent_marks}:{self.mark}".lstrip(":"),
            "PATH": os.pathsep.join((str(self.home / "bin"), environment.get("PATH", os.defpath))),
            "FLWR_HOME": str(self.home / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": SUPEREXEC_POLL_SECONDS,
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": ",".join(filter(None, (environment.get("NO_PROXY"), "127.0.0.1", "localhost", "::1"))),
            "NO_COLOR": "1",
        }

    def start(
        self, name: str, command: Sequence[str], more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in the background; its output goes to logs/NAME.log."""
        self.restart_reaper()
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

    def start_flower(
        self, command: str, *arguments: str, name: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start one of Flower's commands in the background."""
        return self.start(name, flower_command_line(command, *arguments), more)

    def run_flower(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run one of Flower's commands to its end and return its output."""
        try:
            return subprocess.run(
                flower_command_line(*arguments),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                env=self.environment(),
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"'{' '.join(arguments[:2])}' did not end within {timeout:.0f} seconds") from None

    def new_secret(self) -> Path:
        """Write a new secret with which a superexec authenticates to its SuperLink or SuperNode."""
        path = self.home / "superexec.secret"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        return path

    def restart_reaper(self) -> None:
        """Start another reaper if the last one was killed."""
        if self._reaper.poll() is not None:
            self._reaper = self._start_reaper()

    def is_alive(self, name: str) -> bool:
        return name in self.started and self.started[name].poll() is None

    def last_log_lines(self, name: str, lines: int = 1) -> str:
        """Return the last lines of a log, for a message."""
        return last_lines(self.logs / f"{name}.log", lines)

    def stop(self, name: str, patience: float = TERMINATE_SECONDS) -> None:
        """Terminate one child, and kill it if it does not end in time."""
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
        """End all children and every process they have started."""
        before = signal.getsignal(signal.SIGINT) if _is_main_thread() else None
        if before is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave some of them running
        try:
            orphan_reaper.end_marked(self.mark, TERMINATE_SECONDS)
            for child in self.started.values():
                child.wait()
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
            self._reaper.wait()
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)

    def __enter__(self) -> ChildProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def flower_command_line(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs one of Flower's commands with this Python."""
    return [sys.executable, "-m", "offbeat.deploy.flower_command", name, *arguments]


def _write_scripts(folder: Path) -> None:
    """Write scripts for the commands that Flower starts by name, so that PATH need not be set."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m offbeat.deploy.flower_command {name} "$@"\n')
        script.chmod(0o700)


def last_lines(path: Path, lines: int = 1) -> str:
    """Return the last lines of a file that are not empty."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    written = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(written[-lines:])


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_port_is_free(host: str, port: int) -> None:
    """Raise ConfigError if this process cannot listen on the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe_socket:
        # as the gateway does: lingering connections do not count
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind((host, port))
        except socket.gaierror:
            raise ConfigError(f"--host {host}: this machine has no such address or name") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} of {host} is in use: choose another with --port") from None
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f"--host {host}: this machine has no such address") from None
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def is_listening(host: str, port: int, timeout: float = 1.0) -> bool:
    try:
        with socket.create_connection((host, port), timeout):
            return True
    except OSError:
        return False


def wait_until(condition: Callable[[], object], seconds: float, every: float = 0.1) -> bool:
    """Wait until the condition holds; return False if it does not within the given seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True
