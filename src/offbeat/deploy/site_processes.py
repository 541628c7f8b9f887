"""A site's processes: the resident trainer, and Flower's SuperNode that brings it messages. Both are watched, and
started again when they die: the trainer has its outbox, the node its key.
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
from offbeat.deploy.child_processes import Children, free_port
from offbeat.deploy.federation_keys import SiteKeys, fingerprint
from offbeat.deploy.preflight import ask_door

log = logging.getLogger("offbeat")

TRAINER, NODE, EXEC = "trainer", "supernode", "superexec"
# the status of a trainer whose site was refused, and of one that cannot take part, as `resident` has them: that module
# imports torch
REFUSED, UNABLE = 3, 2
AGAIN = (1.0, 30.0)  # seconds until a process that died is started again: at first, and at most
STEADY = 120.0  # seconds after which a death is the first one again
TWINS = 8  # deaths of the node in a row, in two minutes or more: longer than a server holds a connection that was lost
TRIES = 5  # deaths of the trainer in a row that are no accident
PARTING = 6.0  # seconds in which the node carries the last answer away


@dataclass(frozen=True)
class Member:
    """Who joins what: `file` is the site's own, `partition` a part of the experiment's data."""

    name: str
    server: str
    keys: SiteKeys | None = None
    file: Path | None = None
    partition: int | None = None


@dataclass
class Watched:
    """A process that is started again."""

    since: float = 0.0
    deaths: int = 0
    not_before: float = 0.0

    def died(self, now: float) -> None:
        self.deaths = 1 if now - self.since > STEADY else self.deaths + 1
        self.not_before = now + min(AGAIN[0] * 2 ** (self.deaths - 1), AGAIN[1])


class Joining:
    def __init__(self, member: Member, home: Path) -> None:
        self.member, self.home = member, home.resolve()
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _held(self.home)
        self.socket = self.home / "trainer.sock"
        self.children = Children(self.home)
        self.trainer, self.node = Watched(), Watched()
        self.port, self.secret = 0, self.children.secret()
        self._said = ""

    def check(self) -> None:
        """That the server is there, is the right one, and knows this site."""
        member = self.member
        if member.keys is not None:
            member.keys.check()
        ask_door(member.server, "/offbeat/hello", member.keys, member.name)

    def start(self) -> None:
        self._start_trainer()
        self._start_node()

    def _start_trainer(self) -> None:
        member = self.member
        command = [sys.executable, "-m", "offbeat.deploy.site_trainer", "--home", str(self.home), "--name", member.name]
        command += ["--socket", str(self.socket), "--parent", str(os.getpid())]
        if member.keys is not None:
            command += ["--token", fingerprint(member.keys.public)]
        command += ["--file", str(member.file)] if member.file is not None else ["--partition", str(member.partition)]
        self.trainer.since = time.monotonic()
        self.children.start(TRAINER, command)

    def _start_node(self) -> None:
        member = self.member
        tls = ["--insecure"]
        if member.keys is not None:
            tls = ["--root-certificates", str(member.keys.ca.resolve())]
            tls += ["--auth-supernode-private-key", str(member.keys.key.resolve())]
        self.port = free_port()
        command = ["--superlink", member.server, *tls, "--port", str(self.port)]
        command += ["--node-config", f"socket={json.dumps(str(self.socket))}"]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        self.node.since = time.monotonic()
        self.children.flower("flower-supernode", *command, name=NODE)
        self._start_exec()

    def _start_exec(self) -> None:
        """What starts a client app for each message; Flower itself would not start it again."""
        self.children.stop(EXEC)
        command = ["--insecure", "--runtime-api-address", f"127.0.0.1:{self.port}"]
        self.children.flower("flower-superexec", *command, "--superexec-auth-secret-file", str(self.secret), name=EXEC)

    def watch(self) -> str | None:
        """Once in a while: why the server said farewell, None while it has not. RunError if it refuses this site."""
        self.children.look_after()
        now = time.monotonic()
        if (status := self._ended(TRAINER)) is not None:
            said = self.children.last_words(TRAINER)
            if status in (0, REFUSED, UNABLE):
                self._let_go()
                if status == REFUSED:
                    raise RunError(f"the server does not take this site: {said}")
                if status == 0:
                    return said
                raise RunError(said.removeprefix("offbeat: "))
            self.trainer.died(now)
            if self.trainer.deaths >= TRIES:
                raise RunError(f"the trainer died {TRIES} times in a row: {said} (all of it in {self.children.logs})")
            log.warning("the trainer died (%s): starting it again", _how(status))
        if not self.children.alive(TRAINER) and now >= self.trainer.not_before:
            self._start_trainer()
        if (status := self._ended(NODE)) is not None:
            self.node.died(now)
            self._tell(self._why())
        if not self.children.alive(NODE) and now >= self.node.not_before:
            self._start_node()
        elif self.children.alive(NODE) and not self.children.alive(EXEC):
            self._start_exec()
        return None

    def _ended(self, name: str) -> int | None:
        """The status of one that ended since we last looked."""
        child = self.children.started.get(name)
        status = None if child is None else child.poll()
        if status is not None:
            del self.children.started[name]
        return status

    def _why(self) -> str:
        """A node that ended: because the server is away, or does not want it?"""
        try:
            self.check()
        except RunError as error:
            return f"{error}; trying again until it is there"
        if self.node.deaths >= TWINS:
            return f"the server holds another connection of {self.member.name}: is there a second site with its keys?"
        return "the connection was lost, or the server still holds the last one (for a minute or two): trying again"

    def _tell(self, line: str) -> None:
        if line != self._said:
            log.warning("%s", line)
        self._said = line

    def _let_go(self) -> None:
        """The answer to the farewell is on its way."""
        end = time.monotonic() + PARTING
        while time.monotonic() < end and self.children.alive(NODE):
            time.sleep(0.2)

    def close(self) -> None:
        self.children.stop(NODE)  # first: it tells the server that it leaves
        self.children.close()
        os.close(self._lock)


def _held(home: Path) -> int:
    """Until this process ends: two nodes of one trainer would take each other's messages."""
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"a site works in {home} already: end that one, or give this one another --home") from None
    return lock


def _how(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
