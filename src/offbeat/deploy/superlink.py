"""Flower's SuperLink on this machine, and what it is told: which keys may join, which app to run.

It listens on loopback only. Its one port takes more than sites' messages: whoever reaches it may register a key or
submit an app, which is code to run. So sites come in through the door (`door`), which lets nothing else pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from offbeat import __version__
from offbeat.core.errors import RunError
from offbeat.deploy.child_processes import Children, answers, free_port, until
from offbeat.deploy.federation_keys import ServerKeys
from offbeat.deploy.status_files import VARIABLE

HOST = "127.0.0.1"
STARTING = 60.0  # seconds; importing it alone takes some on a busy machine
APP = "offbeat.deploy.flower_server_app:app"

# it has no code in it: both sides run their own offbeat
PROJECT = """[build-system]
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
    def __init__(self, children: Children, live: Path, keys: ServerKeys | None, server_app: str = APP) -> None:
        self.children, self.live, self.keys = children, live, keys
        self.port, self.secret = free_port(), children.secret()
        self.app = live / "app" / "offbeat-live"
        self.app.mkdir(parents=True, exist_ok=True)
        version = __version__.partition(".dev")[0]
        (self.app / "pyproject.toml").write_text(PROJECT.format(server=server_app, version=version))
        self.nodes: dict[str, int] = {}  # public key -> node

    def start(self) -> None:
        """A new one: it knows nobody yet."""
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
        # its superexec is a process of ours: one that dies is started again, which Flower itself does not do
        command = ["--host", HOST, "--port", str(self.port), "--disable-runtime-dependency-installation", *tls]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        self.children.flower("flower-superlink", *command, name="superlink")
        if not until(lambda: not self.alive() or answers(HOST, self.port), STARTING) or not self.alive():
            raise RunError(f"Flower's SuperLink did not start: {self.children.last_words('superlink')}")
        self.start_exec()

    def start_exec(self) -> None:
        """What starts the server app."""
        self.children.stop("superexec")
        tls = ["--insecure"] if self.keys is None else ["--root-certificates", str(self.keys.ca.resolve())]
        command = ["--runtime-api-address", f"{HOST}:{self.port}", *tls]
        command += ["--superexec-auth-secret-file", str(self.secret)]
        self.children.flower("flower-superexec", *command, name="superexec", more={VARIABLE: str(self.live)})

    def alive(self) -> bool:
        return self.children.alive("superlink")

    def register(self, public_key: Path) -> int:
        """Let a site with this key join; the number of its node."""
        text = public_key.read_text().strip()
        if text not in self.nodes:
            said = self._ask("supernode", "register", str(public_key.resolve()))
            try:
                self.nodes[text] = int(str(said["node-id"]))
            except (KeyError, TypeError, ValueError):
                raise RunError(f"Flower did not register the key {public_key}: {said}") from None
        return self.nodes[text]

    def submit(self) -> None:
        """Start the server app."""
        self._ask("run", str(self.app.resolve()))

    def _ask(self, *arguments: str) -> Mapping[str, object]:
        done = self.children.ask("flwr", *arguments, "offbeat", "--format", "json")
        try:
            said = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            said = {}
        if done.returncode or not said.get("success", False):
            words = said.get("error-message") or " ".join((done.stderr or done.stdout).split())[-300:]
            raise RunError(f"'flwr {arguments[0]}' failed: {words}")
        assert isinstance(said, dict)
        return said
