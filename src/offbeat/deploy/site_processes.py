"""Start, watch and restart the processes of a site: the resident trainer and Flower's SuperNode.

Both may be restarted at any time: the trainer has its result store, the node its key.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import ConfigError, RunError
from offbeat.deploy.child_processes import ChildProcesses, free_port
from offbeat.deploy.federation_keys import SiteKeys, fingerprint
from offbeat.deploy.preflight import query_server

log = logging.getLogger("offbeat")

TRAINER, NODE, EXEC = "trainer", "supernode", "superexec"
# exit status of a trainer that was refused or cannot take part, as in `site_trainer`, which imports torch
REFUSED, UNABLE = 3, 2
RESTART_SECONDS = (1.0, 30.0)  # pause before a restart: first and longest
STEADY_SECONDS = 120.0  # a process that ran longer starts a new count of failures
# failures of the node in a row: more than two minutes, longer than a server keeps a lost connection
DUPLICATE_SITE_DEATHS = 8
MAX_TRAINER_DEATHS = 5  # failures of the trainer in a row
FAREWELL_SECONDS = 6.0  # for the node to send the last answer


@dataclass(frozen=True)
class SiteOptions:
    """Name, server, keys and data of a site: its own `file`, or `partition` N of the experiment's data."""

    name: str
    server: str
    keys: SiteKeys | None = None
    file: Path | None = None
    partition: int | None = None


@dataclass
class RestartTimer:
    """Count the failures of a process and delay its restarts."""

    since: float = 0.0
    deaths: int = 0
    not_before: float = 0.0

    def died(self, now: float) -> None:
        """Count a failure and choose the earliest time of the restart."""
        self.deaths = 1 if now - self.since > STEADY_SECONDS else self.deaths + 1
        self.not_before = now + min(RESTART_SECONDS[0] * 2 ** (self.deaths - 1), RESTART_SECONDS[1])


class SiteProcesses:
    """The processes of one site."""

    def __init__(self, options: SiteOptions, home: Path) -> None:
        self.options, self.home = options, home.resolve()
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock_home(self.home)
        self.socket = self.home / "trainer.sock"
        self.children = ChildProcesses(self.home)
        self.trainer, self.node = RestartTimer(), RestartTimer()
        self.port, self.secret = 0, self.children.new_secret()
        self._last_warning = ""

    def check(self) -> None:
        """Check that the server is reachable, genuine and knows this site."""
        member = self.options
        if member.keys is not None:
            member.keys.check()
        query_server(member.server, "/offbeat/hello", member.keys, member.name)

    def start(self) -> None:
        self._start_trainer()
        self._start_node()

    def _start_trainer(self) -> None:
        member = self.options
        command = [sys.executable, "-m", "offbeat.deploy.site_trainer", "--home", str(self.home), "--name", member.name]
        command += ["--socket", str(self.socket), "--parent", str(os.getpid())]
        if member.keys is not None:
            command += ["--token", fingerprint(member.keys.public)]
        command += ["--file", str(member.file)] if member.file is not None else ["--partition", str(member.partition)]
        self.trainer.since = time.monotonic()
        self.children.start(TRAINER, command)

    def _start_node(self) -> None:
        """Start Flower's SuperNode and its superexec."""
        member = self.options
        tls = ["--insecure"]
        if member.keys is not None:
            tls = ["--root-certificates", str(member.keys.ca.resolve())]
            tls += ["--auth-supernode-private-key", str(member.keys.key.resolve())]
        self.port = free_port()
        command = ["--superlink", member.server, *tls, "--port", str(self.port)]
        command += ["--node-config", f"socket={json.dumps(str(self.socket))}"]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        self.node.since = time.monotonic()
        self.children.start_flower("flower-supernode", *command, name=NODE)
        self._start_exec()

    def _start_exec(self) -> None:
        """Start the superexec, which starts a client app for each message; Flower does not restart it."""
        self.children.stop(EXEC)
        command = ["--insecure", "--runtime-api-address", f"127.0.0.1:{self.port}"]
        command += ["--superexec-auth-secret-file", str(self.secret)]
        self.children.start_flower("flower-superexec", *command, name=EXEC)

    def watch(self) -> str | None:
        """Restart dead processes; return the reason of a farewell, or None. Raise RunError if the server refuses."""
        self.children.restart_reaper()
        now = time.monotonic()
        if (status := self._exit_status(TRAINER)) is not None:
            last_line = self.children.last_log_lines(TRAINER)
            if status in (0, REFUSED, UNABLE):
                self._wait_for_farewell()
                if status == REFUSED:
                    raise RunError(f"the server rejected this site: {last_line}")
                if status == 0:
                    return last_line
                raise RunError(last_line.removeprefix("offbeat: "))
            self.trainer.died(now)
            if self.trainer.deaths >= MAX_TRAINER_DEATHS:
                raise RunError(
                    f"the trainer died {MAX_TRAINER_DEATHS} times in a row: {last_line} (see {self.children.logs})"
                )
            log.warning("the trainer died (%s): restarting it", _describe_exit(status))
        if not self.children.is_alive(TRAINER) and now >= self.trainer.not_before:
            self._start_trainer()
        if (status := self._exit_status(NODE)) is not None:
            self.node.died(now)
            self._warn_once(self._explain_node_exit())
        if not self.children.is_alive(NODE) and now >= self.node.not_before:
            self._start_node()
        elif self.children.is_alive(NODE) and not self.children.is_alive(EXEC):
            self._start_exec()
        return None

    def _exit_status(self, name: str) -> int | None:
        """Return the exit status of a process that ended since the last call."""
        child = self.children.started.get(name)
        status = None if child is None else child.poll()
        if status is not None:
            del self.children.started[name]
        return status

    def _explain_node_exit(self) -> str:
        """Explain why the node ended: an unreachable server, a refusal or a second site."""
        try:
            self.check()
        except RunError as error:
            return f"{error}; trying again"
        if self.node.deaths >= DUPLICATE_SITE_DEATHS:
            return f"the server has another connection from {self.options.name}: is a second site using its keys?"
        return "the connection was lost, or the server still keeps the last one for a minute or two: trying again"

    def _warn_once(self, line: str) -> None:
        """Log a warning unless it repeats the last one."""
        if line != self._last_warning:
            log.warning("%s", line)
        self._last_warning = line

    def _wait_for_farewell(self) -> None:
        """Give the node time to send the answer to the farewell."""
        end = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < end and self.children.is_alive(NODE):
            time.sleep(0.2)

    def close(self) -> None:
        self.children.stop(NODE)  # first, because it announces its departure
        self.children.close()
        os.close(self._lock)


def _lock_home(home: Path) -> int:
    """Lock the home folder until this process ends; two nodes would take each other's messages."""
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"another site uses {home}: stop it, or choose another --home") from None
    return lock


def _describe_exit(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
