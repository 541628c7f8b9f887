"""Read-only web server for a folder of runs, reachable from this machine only.

The server listens on 127.0.0.1, answers GET requests, and checks the Host header, which defeats DNS rebinding. Requests
name runs that the index has found; they never contain a path to open.
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
from offbeat.results.dashboard.run_index import IndexEntry, RunIndex

HOST = "127.0.0.1"
MAX_RUNS_SHOWN = 32  # side by side


class Dashboard(ThreadingHTTPServer):
    """The server and its index of runs."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder")
        self.run_index, self.request_lock = RunIndex(folder.resolve()), threading.Lock()
        try:
            super().__init__((HOST, port), DashboardHandler)
        except OSError as error:
            raise RunError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another with --port") from None

    @property
    def address(self) -> str:
        """Return the address to open in a browser."""
        return f"http://{HOST}:{self.server_port}/"

    def server_bind(self) -> None:
        """Bind without the reverse DNS lookup of the base class."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]


class DashboardHandler(BaseHTTPRequestHandler):
    """Answer one request."""

    server: Dashboard
    server_version, sys_version = "offbeat", ""
    timeout = 30  # seconds without data

    def do_GET(self) -> None:
        """Answer a request for a page or for new numbers."""
        with suppress(BrokenPipeError, ConnectionResetError):  # the client has closed the connection
            self._send(*self._choose_answer())

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Reject a request that would change something."""
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "this server is read-only")

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def _choose_answer(self) -> tuple[HTTPStatus, str, str]:
        """Return status, text and kind of the answer to a request."""
        port = self.server.server_port
        if self.headers.get_all("Host", []) not in ([f"{name}:{port}"] for name in (HOST, "localhost")):
            return HTTPStatus.FORBIDDEN, f"use this address: {self.server.address}", "plain"
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        with self.server.request_lock:
            if url.path == "/":
                index = self.server.run_index
                return HTTPStatus.OK, dashboard_pages.runs_page(index.entries(), index.root), "html"
            if url.path not in ("/view", "/numbers"):
                return HTTPStatus.NOT_FOUND, "there is no such page", "plain"
            entries = self._find_entries(list(dict.fromkeys(query.get("of", []))))
            if entries is None:
                return HTTPStatus.NOT_FOUND, f"choose from 1 to {MAX_RUNS_SHOWN} runs on the first page", "plain"
            if url.path == "/view":
                return HTTPStatus.OK, dashboard_pages.result_page(entries), "html"
            if query.get("after") == [dashboard_pages.content_stamp(entries)]:
                return HTTPStatus.NO_CONTENT, "", "plain"
            try:
                return HTTPStatus.OK, dashboard_pages.updated_numbers(entries), "json"
            except OffbeatError as error:
                return HTTPStatus.CONFLICT, str(error), "plain"

    def _find_entries(self, names: list[str]) -> list[IndexEntry] | None:
        """Return the runs and comparisons with these names; None if one is unknown or there are too many."""
        known = self.server.run_index.entries_by_name()
        if not 0 < len(names) <= MAX_RUNS_SHOWN or not all(name in known for name in names):
            return None
        return [known[name] for name in names]

    def _send(self, status: HTTPStatus, text: str, kind: str = "plain") -> None:
        """Send a complete answer."""
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
        """Log nothing."""
