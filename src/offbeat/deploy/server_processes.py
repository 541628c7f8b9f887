"""Start, watch, restart and stop the processes of a server: Flower's SuperLink, the gateway and the server app.

The app may die at any moment; a new one continues the run, while sites stay connected. The SuperLink listens on
loopback only, because its port accepts keys to register and apps, which are code to run.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from offbeat import __version__
from offbeat.core.errors import RunError
from offbeat.deploy import orphan_reaper
from offbeat.deploy.child_processes import (
    ChildProcesses,
    check_port_is_free,
    free_port,
    is_listening,
    last_lines,
    wait_until,
)
from offbeat.deploy.federation_keys import ServerKeys, fingerprint
from offbeat.deploy.live_status import LIVE_FOLDER, LIVE_FOLDER_VARIABLE, AppOptions, AppStatus, RegisteredSites

INTERRUPTED = "interrupted"  # the reason of an app that was stopped, as in `engine.virtual`
log = logging.getLogger("offbeat")

APP_START_SECONDS = 90.0  # until the app writes its status: it imports Flower and torch
APP_STOP_SECONDS = 60.0  # for its last checkpoint
MAX_FAILURES = 5  # in a row, each within STEADY_SECONDS of a start
STEADY_SECONDS = 60.0
KEY_SCAN_SECONDS = 3.0  # between two scans for new keys


@dataclass(frozen=True)
class Endpoint:
    """The address at which sites reach the server, and its keys."""

    host: str
    port: int
    keys: ServerKeys | None


class ServerProcesses:
    """The processes that serve one run folder."""

    def __init__(self, run: Path, endpoint: Endpoint, options: AppOptions, server_app: str | None = None) -> None:
        self.live = (run / LIVE_FOLDER).resolve()
        self.live.mkdir(parents=True, exist_ok=True)
        self.endpoint = endpoint
        options.write(self.live)
        AppStatus.remove(self.live)
        RegisteredSites.remove(self.live)
        self.children = ChildProcesses(self.live)
        named = {} if server_app is None else {"server_app": server_app}
        self.link = SuperLink(self.children, self.live, endpoint.keys, **named)
        self._keys_scanned_at = self._app_started_at = 0.0
        self._failures = 0

    def start(self) -> None:
        self._start_link_and_gateway()
        self._start_app()

    def _start_link_and_gateway(self) -> None:
        self.link.start()
        self._register_keys()
        self._start_gateway()

    def _start_gateway(self) -> None:
        """Start the gateway and wait until it listens."""
        place = self.endpoint
        check_port_is_free(place.host, place.port)
        command = [*python_command("offbeat.deploy.gateway"), "--host", place.host, "--port", str(place.port)]
        command += ["--link", f"127.0.0.1:{self.link.port}", "--live", str(self.live.parent)]
        if place.keys is not None:
            command += ["--keys", str(place.keys.folder.resolve())]
        self.children.start("gateway", command)
        reached, alive = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place.host, place.host), self.children.is_alive
        settled = wait_until(lambda: not alive("gateway") or is_listening(reached, place.port), 30.0, 0.05)
        if not settled or not alive("gateway"):
            why = self.children.last_log_lines("gateway").rpartition(": ")[2] or "it is in use"
            raise RunError(f"cannot listen on {place.host}:{place.port}: {why}")

    def _register_keys(self) -> None:
        """Register new keys at the SuperLink, because a site may be added at any time."""
        self._keys_scanned_at = time.monotonic()
        if self.endpoint.keys is None:
            return
        nodes = {}
        for name, path in self.endpoint.keys.sites().items():
            try:
                nodes[str(self.link.register(path))] = (name, fingerprint(path))
            except RunError as error:
                log.warning("the key of %s is not registered: %s", name, error)
        RegisteredSites(nodes).write(self.live)

    def _start_app(self) -> None:
        """Start the server app and wait for its first status."""
        AppStatus.remove(self.live)
        self._app_started_at = time.monotonic()
        self.link.start_app()
        if not wait_until(lambda: AppStatus.read(self.live) is not None or not self.link.is_alive(), APP_START_SECONDS):
            raise RunError(f"the server app did not start: {self.children.last_log_lines('superlink', 3)}")

    def watch(self) -> AppStatus | None:
        """Restart dead processes; return the final status of the app, or None while it runs."""
        self.children.restart_reaper()
        status = AppStatus.read(self.live)
        ended = status is not None and status.state == "ended" and status.reason != INTERRUPTED
        if ended or (status is not None and status.state == "failed" and status.expected):
            return status
        if not self.link.is_alive():
            self._count_failure("Flower's SuperLink died")
            self._kill_app()
            self.children.stop("gateway")
            self._start_link_and_gateway()
            self._start_app()
        if not self.children.is_alive("superexec"):
            self.link.start_superexec()
        status = AppStatus.read(self.live)
        if status is None or status.state != "running" or not self._is_running(status.process):
            self._count_failure(status.reason if status and status.state == "failed" else "the server app died")
            self._kill_app()
            self._start_app()
        if not self.children.is_alive("gateway"):
            self._start_gateway()
        if time.monotonic() - self._keys_scanned_at > KEY_SCAN_SECONDS and self.endpoint.keys is not None:
            known = {path.read_text().strip() for path in self.endpoint.keys.sites().values()}
            if known - self.link.nodes.keys():
                self._register_keys()
            self._keys_scanned_at = time.monotonic()
        return None

    def _count_failure(self, why: str) -> None:
        """Count failures soon after a start, and raise RunError after too many of them."""
        steady = time.monotonic() - self._app_started_at > STEADY_SECONDS
        self._failures = 1 if steady else self._failures + 1
        log.warning("%s: restarting it", why)
        if self._failures >= MAX_FAILURES:
            raise RunError(f"{why}, {MAX_FAILURES} times in a row: {self.last_log_lines()}")

    def _is_running(self, process: int) -> bool:
        """Return whether this process is a running child of this server."""
        marked = orphan_reaper.marked_processes(self.children.mark) if os.path.isdir("/proc") else None
        return AppStatus("running", process).is_alive() if marked is None else process in marked

    def last_log_lines(self) -> str:
        """Return the last lines of the app's log, or of the SuperLink's."""
        return last_lines(self.live / "logs" / "server.log") or self.children.last_log_lines("superlink")

    def stop(self, waiting: Callable[[], None] = lambda: None) -> AppStatus | None:
        """Ask the app to stop with a checkpoint, and wait for it."""
        status = AppStatus.read(self.live)
        if status is None or status.state != "running" or not self._is_running(status.process):
            return status
        with suppress(ProcessLookupError):
            os.kill(status.process, signal.SIGTERM)
        end = time.monotonic() + APP_STOP_SECONDS
        while time.monotonic() < end and self._is_running(status.process):
            if (now := AppStatus.read(self.live)) is not None and now.state != "running":
                return now
            waiting()
            time.sleep(0.1)
        return AppStatus.read(self.live)

    def _kill_app(self) -> None:
        """Kill the server app, which writes no last checkpoint then."""
        status = AppStatus.read(self.live)
        if status is not None and self._is_running(status.process):
            os.kill(status.process, signal.SIGKILL)
            wait_until(lambda: not self._is_running(status.process), 10.0)

    def close(self) -> None:
        self.children.close()


def python_command(module: str) -> list[str]:
    return [sys.executable, "-m", module]


HOST = "127.0.0.1"
LINK_START_SECONDS = 60.0  # importing Flower is slow on a busy machine
APP = "offbeat.deploy.flower_server_app:app"

# the app holds no code: server and sites run their own offbeat
APP_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "offbeat-live"
version = "{version}"
description = "A federation of offbeat"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "offbeat"

[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "offbeat.deploy.flower_client_app:app"

[tool.flwr.app.config]
"""


class SuperLink:
    """Flower's SuperLink on this machine, its superexec, and the commands sent to it."""

    def __init__(self, children: ChildProcesses, live: Path, keys: ServerKeys | None, server_app: str = APP) -> None:
        self.children, self.live, self.keys = children, live, keys
        self.port, self.secret = free_port(), children.new_secret()
        self.app = live / "app" / "offbeat-live"
        self.app.mkdir(parents=True, exist_ok=True)
        version = __version__.partition(".dev")[0]
        (self.app / "pyproject.toml").write_text(APP_PROJECT.format(server=server_app, version=version))
        self.nodes: dict[str, int] = {}  # public key -> node

    def start(self) -> None:
        """Start a new SuperLink, which knows no keys yet."""
        self.children.stop("superexec")
        self.children.stop("superlink")
        self.nodes.clear()
        tls, link = ["--insecure"], "insecure = true"
        if self.keys is not None:
            files = {"ca-certfile": self.keys.ca, "certfile": self.keys.certificate, "keyfile": self.keys.key}
            tls = [part for name, file in files.items() for part in (f"--ssl-{name}", str(file.resolve()))]
            tls.append("--enable-supernode-auth")
            link = f"root-certificates = {json.dumps(str(self.keys.ca.resolve()))}"
        home = self.children.home / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "offbeat"\n\n[superlink.offbeat]\naddress = "{HOST}:{self.port}"\n{link}\n'
        )
        # the superexec is a process of its own here, because Flower does not restart one that dies
        command = ["--host", HOST, "--port", str(self.port), "--disable-runtime-dependency-installation", *tls]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        self.children.start_flower("flower-superlink", *command, name="superlink")
        settled = wait_until(lambda: not self.is_alive() or is_listening(HOST, self.port), LINK_START_SECONDS)
        if not settled or not self.is_alive():
            raise RunError(f"Flower's SuperLink did not start: {self.children.last_log_lines('superlink')}")
        self.start_superexec()

    def start_superexec(self) -> None:
        """Start the superexec, which starts the server app."""
        self.children.stop("superexec")
        tls = ["--insecure"] if self.keys is None else ["--root-certificates", str(self.keys.ca.resolve())]
        command = ["--runtime-api-address", f"{HOST}:{self.port}", *tls]
        command += ["--superexec-auth-secret-file", str(self.secret)]
        more = {LIVE_FOLDER_VARIABLE: str(self.live)}
        self.children.start_flower("flower-superexec", *command, name="superexec", more=more)

    def is_alive(self) -> bool:
        return self.children.is_alive("superlink")

    def register(self, public_key: Path) -> int:
        """Let a site with this key join, and return its node id."""
        text = public_key.read_text().strip()
        if text not in self.nodes:
            answer = self._run_flwr("supernode", "register", str(public_key.resolve()))
            try:
                self.nodes[text] = int(str(answer["node-id"]))
            except (KeyError, TypeError, ValueError):
                raise RunError(f"Flower did not register the key {public_key}: {answer}") from None
        return self.nodes[text]

    def start_app(self) -> None:
        """Start the server app."""
        self._run_flwr("run", str(self.app.resolve()))

    def _run_flwr(self, *arguments: str) -> Mapping[str, object]:
        """Run a command of `flwr`; return its JSON answer or raise RunError."""
        done = self.children.run_flower("flwr", *arguments, "offbeat", "--format", "json")
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {}
        if done.returncode or not answer.get("success", False):
            words = answer.get("error-message") or " ".join((done.stderr or done.stdout).split())[-300:]
            raise RunError(f"'flwr {arguments[0]}' failed: {words}")
        assert isinstance(answer, dict)
        return answer
