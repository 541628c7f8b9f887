"""A server: SuperLink, door and server app as one thing that is started, watched, started again, and ended.

The app is what may die at any moment: it holds the run folder, and a new one goes on with it. Sites stay connected
meanwhile, and are sent the open tickets again.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import RunError
from offbeat.deploy import orphan_reaper
from offbeat.deploy.child_processes import Children, answers, last_lines, refuse_taken, until
from offbeat.deploy.federation_keys import ServerKeys, fingerprint
from offbeat.deploy.live_overview import LIVE
from offbeat.deploy.status_files import Orders, Registered, Standing
from offbeat.deploy.superlink import SuperLink

INTERRUPTED = "interrupted"  # how an app ends that was asked to, as `engines.virtual` has it
log = logging.getLogger("offbeat")

STARTING = 90.0  # seconds for the app to say that it runs: it imports Flower and torch
STOPPING = 60.0  # seconds for its last checkpoint
TRIES = 5  # failures in a row, less than STEADY seconds after the start each, before it is given up
STEADY = 60.0
KEYS_EVERY = 3.0  # seconds between two looks for new keys


@dataclass(frozen=True)
class Place:
    """Where others reach it, and with which keys."""

    host: str
    port: int
    keys: ServerKeys | None


class Hosting:
    def __init__(self, run: Path, place: Place, orders: Orders, server_app: str | None = None) -> None:
        self.live = (run / LIVE).resolve()
        self.live.mkdir(parents=True, exist_ok=True)
        self.place = place
        orders.write(self.live)
        Standing.remove(self.live)
        Registered.remove(self.live)
        self.children = Children(self.live)
        named = {} if server_app is None else {"server_app": server_app}
        self.link = SuperLink(self.children, self.live, place.keys, **named)
        self._looked = self._submitted = 0.0
        self._failures = 0

    def start(self) -> None:
        self._open_link()
        self._submit()

    def _open_link(self) -> None:
        self.link.start()
        self._register()
        self._open_door()

    def _open_door(self) -> None:
        place = self.place
        refuse_taken(place.host, place.port)
        command = [*_python("offbeat.deploy.gateway"), "--host", place.host, "--port", str(place.port)]
        command += ["--link", f"127.0.0.1:{self.link.port}", "--live", str(self.live.parent)]
        if place.keys is not None:
            command += ["--keys", str(place.keys.folder.resolve())]
        self.children.start("door", command)
        reached = "127.0.0.1" if place.host == "0.0.0.0" else "::1" if place.host == "::" else place.host
        if not until(lambda: not self.children.alive("door") or answers(reached, place.port), 30.0, 0.05) or not (
            self.children.alive("door")
        ):
            said = self.children.last_words("door")
            raise RunError(f"cannot listen on {place.host}:{place.port}: {said.rpartition(': ')[2] or 'it is taken'}")

    def _register(self) -> None:
        """Keys that are new: a site may be added at any time."""
        self._looked = time.monotonic()
        if self.place.keys is None:
            return
        nodes = {}
        for name, path in self.place.keys.sites().items():
            try:
                nodes[str(self.link.register(path))] = (name, fingerprint(path))
            except RunError as error:
                log.warning("the key of %s is not registered: %s", name, error)
        Registered(nodes).write(self.live)

    def _submit(self) -> None:
        Standing.remove(self.live)
        self._submitted = time.monotonic()
        self.link.submit()
        if not until(lambda: Standing.read(self.live) is not None or not self.link.alive(), STARTING):
            raise RunError(f"the server app did not start: {self.children.last_words('superlink', 3)}")

    # ---------------------------------------------------------------- while it goes on

    def watch(self) -> Standing | None:
        """Once in a while: how it stands when it is over, None while it goes on. What died is started again."""
        self.children.look_after()
        standing = Standing.read(self.live)
        ended = standing is not None and standing.state == "ended" and standing.reason != INTERRUPTED
        if ended or (standing is not None and standing.state == "failed" and standing.expected):
            return standing
        if not self.link.alive():
            self._again("Flower's SuperLink died")
            self._end_app()
            self.children.stop("door")
            self._open_link()
            self._submit()
        if not self.children.alive("superexec"):
            self.link.start_exec()
        standing = Standing.read(self.live)
        if standing is None or standing.state != "running" or not self._runs(standing.process):
            self._again(standing.reason if standing and standing.state == "failed" else "the server app died")
            self._end_app()
            self._submit()
        if not self.children.alive("door"):
            self._open_door()
        if time.monotonic() - self._looked > KEYS_EVERY and self.place.keys is not None:
            known = {path.read_text().strip() for path in self.place.keys.sites().values()}
            if known - self.link.nodes.keys():
                self._register()
            self._looked = time.monotonic()
        return None

    def _again(self, why: str) -> None:
        """Count what happens soon after a start: it would go on for ever."""
        steady = time.monotonic() - self._submitted > STEADY
        self._failures = 1 if steady else self._failures + 1
        log.warning("%s: starting it again", why)
        if self._failures >= TRIES:
            raise RunError(f"{why}, {TRIES} times in a row: {self.last_words()}")

    def _runs(self, process: int) -> bool:
        marked = orphan_reaper.marked(self.children.mark) if os.path.isdir("/proc") else None
        return Standing("running", process).alive() if marked is None else process in marked

    def last_words(self) -> str:
        return last_lines(self.live / "logs" / "server.log") or self.children.last_words("superlink")

    # ---------------------------------------------------------------- the end

    def stop(self, waiting: Callable[[], None] = lambda: None) -> Standing | None:
        """Ask the app to stop with a checkpoint, and wait for that."""
        standing = Standing.read(self.live)
        if standing is None or standing.state != "running" or not self._runs(standing.process):
            return standing
        with suppress(ProcessLookupError):
            os.kill(standing.process, signal.SIGTERM)
        end = time.monotonic() + STOPPING
        while time.monotonic() < end and self._runs(standing.process):
            if (now := Standing.read(self.live)) is not None and now.state != "running":
                return now
            waiting()
            time.sleep(0.1)
        return Standing.read(self.live)

    def _end_app(self) -> None:
        standing = Standing.read(self.live)
        if standing is not None and self._runs(standing.process):
            os.kill(standing.process, signal.SIGKILL)
            until(lambda: not self._runs(standing.process), 10.0)

    def close(self) -> None:
        self.children.close()


def _python(module: str) -> list[str]:
    import sys

    return [sys.executable, "-m", module]
