"""A page over a folder of runs, served to this machine and nobody else: read only, with what Python brings.

It listens on 127.0.0.1, answers GET, and only to who calls it by that name: a page from elsewhere, whose name was made
to point here, gets nothing. What is asked for is looked up among the runs that were found; no path comes from a
request.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from offbeat.core.errors import ConfigError, OffbeatError, RunError
from offbeat.results.dashboard import dashboard_pages
from offbeat.results.dashboard.run_index import Entry, Store

HOST = "127.0.0.1"
MOST = 32  # runs beside each other


class Dashboard(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder")
        self.store, self.one_at_a_time = Store(folder.resolve()), threading.Lock()
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise RunError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another with --port") from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def server_bind(self) -> None:
        """Without asking anybody for the name of this machine."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]


class Handler(BaseHTTPRequestHandler):
    server: Dashboard
    server_version, sys_version = "offbeat", ""
    timeout = 30  # seconds without a word

    def do_GET(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked has gone
            self._answer()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "this is only looked at")

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def _answer(self) -> None:
        port = self.server.server_port
        if self.headers.get_all("Host", []) not in ([f"{name}:{port}"] for name in (HOST, "localhost")):
            return self._send(HTTPStatus.FORBIDDEN, f"call it by its name: {self.server.address}")
        asked = urlsplit(self.path)
        query = parse_qs(asked.query)
        with self.server.one_at_a_time:
            if asked.path == "/":
                return self._send(
                    HTTPStatus.OK, dashboard_pages.listed(self.server.store.entries(), self.server.store.root), "html"
                )
            if asked.path not in ("/view", "/numbers"):
                return self._send(HTTPStatus.NOT_FOUND, "there is no such page")
            names = list(dict.fromkeys(query.get("of", [])))
            entries = self._found(names)
            if entries is None:
                return self._send(
                    HTTPStatus.NOT_FOUND, "choose one run or several (at most 32), of those on the first page"
                )
            if asked.path == "/view":
                return self._send(HTTPStatus.OK, dashboard_pages.viewed(entries), "html")
            if query.get("after") == [dashboard_pages.stamp(entries)]:
                return self._send(HTTPStatus.NO_CONTENT, "")
            try:
                self._send(HTTPStatus.OK, dashboard_pages.fresh(entries), "json")
            except OffbeatError as error:
                self._send(HTTPStatus.CONFLICT, str(error))

    def _found(self, names: list[str]) -> list[Entry] | None:
        known = self.server.store.known()
        if not 0 < len(names) <= MOST or not all(name in known for name in names):
            return None
        return [known[name] for name in names]

    def _send(self, status: HTTPStatus, text: str, kind: str = "plain") -> None:
        data = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{'application' if kind == 'json' else 'text'}/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody has to read of every request."""
