"""The gateway of a server: the one public port, which passes only the sites' messages on to Flower.

Flower's SuperLink listens on loopback behind it, because its port would also accept apps to run and keys to register
from anyone. With keys, the gateway speaks TLS and checks that each request is signed with a key of the keys folder;
a key that is removed from the folder loses access. Rejected requests are logged.

    python -m offbeat.deploy.gateway --host 0.0.0.0 --port 8443 --link 127.0.0.1:41234 --live DIR [--keys DIR]
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import logging
import os
import re
import signal
import socket
import ssl
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from offbeat import __version__
from offbeat.core.errors import OffbeatError, to_single_line
from offbeat.deploy.federation_keys import ServerKeys, fingerprint, fingerprint_of_pem, has_valid_signature
from offbeat.deploy.preflight import SIGNATURE, SIGNED

log = logging.getLogger("offbeat.gateway")

FLEET_PATH = re.compile(r"/v1/fleet/[a-z-]+")  # the part of Flower's API that sites use
OFFBEAT_PATH = "/offbeat/"  # requests that the gateway answers itself
MAX_REQUEST_BYTES = 64 << 20  # Flower sends arrays in pieces of at most 20 MB
HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 120.0  # a connection without data is closed after this time
MAX_CONNECTIONS = 500
MAX_CLOCK_SKEW = 60.0  # seconds
KEY_HEADER = "flwr-public-key"  # header of Flower's SuperNode
HOP_BY_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "upgrade", "expect"}
HOP_BY_HOP_HEADERS |= {"te", "trailer"}


class Gateway(ThreadingHTTPServer):
    """An HTTP server that forwards the requests of known sites to Flower's SuperLink."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, link: str, live: Path, keys: ServerKeys | None) -> None:
        self.link, self.live, self.keys = link, live, keys
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._connections = threading.Semaphore(MAX_CONNECTIONS)
        self._known_cache: tuple[float, dict[str, str]] = (-1.0, {})
        self.outside = self.inside = None
        if keys is not None:
            self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.outside.minimum_version = ssl.TLSVersion.TLSv1_2
            self.outside.load_cert_chain(keys.certificate, keys.key)
            self.inside = ssl.create_default_context(cafile=str(keys.ca))
        super().__init__((host, port), GatewayRequest)

    def known_fingerprints(self) -> dict[str, str]:
        """Map fingerprints to site names, from the keys folder, read at most once a second."""
        assert self.keys is not None
        since, names = self._known_cache
        if time.monotonic() - since > 1.0:
            names = {fingerprint(path): name for name, path in self.keys.sites().items()}
            self._known_cache = (time.monotonic(), names)
        return names

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Run the TLS handshake in the thread of the request, so that a slow client delays no other."""
        who = client_address[0]
        if not self._connections.acquire(blocking=False):
            log.warning("%s: rejected, there are %s connections already", who, MAX_CONNECTIONS)
            self.shutdown_request(request)
            return
        try:
            request.settimeout(HANDSHAKE_SECONDS)
            if self.outside is not None:
                first = request.recv(1, socket.MSG_PEEK)
                if not first:  # a port scan
                    self.shutdown_request(request)
                    return
                if first != b"\x16":
                    log.warning("%s: rejected, it does not speak TLS (plain HTTP to a TLS port?)", who)
                    request.sendall(b"HTTP/1.1 400 TLS only\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                    self.shutdown_request(request)
                    return
                request = self.outside.wrap_socket(request, server_side=True)
            request.settimeout(IDLE_SECONDS)
            super().process_request_thread(request, client_address)
        except ssl.SSLError as error:
            log.warning("%s: no secure connection: %s", who, _explain_tls_error(error))
            self.shutdown_request(request)
        except OSError:  # it hung up
            self.shutdown_request(request)
        finally:
            self._connections.release()

    def handle_error(self, request: object, client_address: Any) -> None:
        """Log an unexpected error of a request."""
        log.exception("%s: a request failed", client_address[0])


class GatewayRequest(BaseHTTPRequestHandler):
    """Answer or forward one request."""

    server: Gateway
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "offbeat", ""
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet
    upstream: http.client.HTTPConnection | None = None

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: only rejected requests are logged."""
        # only rejected requests are logged

    def do_GET(self) -> None:
        """Answer offbeat's own requests: hello and status."""
        path = self.path.partition("?")[0]
        if not path.startswith(OFFBEAT_PATH):
            self._refuse(404, f"{path!r} is not available here")
            return
        if (who := self._verified_sender()) is None:
            return
        if path == OFFBEAT_PATH + "hello":
            self._respond(200, {"offbeat": __version__, "you": who})
        elif path == OFFBEAT_PATH + "status":
            from offbeat.deploy.live_status import overview

            try:
                self._respond(200, overview(self.server.live))
            except (OffbeatError, OSError) as error:
                self._respond(503, {"error": str(error)})
        else:
            self._refuse(404, f"{path!r} does not exist")

    def do_POST(self) -> None:
        """Forward a request of Flower's nodes if its path, key and length are allowed."""
        path = self.path
        if not FLEET_PATH.fullmatch(path):
            self._refuse(403, f"{path!r} is not allowed here")
            return
        if self.server.keys is not None and not self._has_known_key():
            return
        length = self.headers.get("content-length", "")
        if "transfer-encoding" in self.headers or not length.isdecimal():
            self._refuse(411, "a request without a length")
            return
        if int(length) > MAX_REQUEST_BYTES:
            self._refuse(413, f"a request of {length} bytes; at most {MAX_REQUEST_BYTES} are allowed")
            return
        body = self.rfile.read(int(length))
        if len(body) == int(length):
            self._forward(path, body)

    def _forward(self, path: str, body: bytes) -> None:
        """Send a request to the SuperLink and pass its answer on."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP_HEADERS}
        for last in (False, True):  # reconnect once if Flower has closed the connection
            if self.upstream is None:
                host, _, port = self.server.link.rpartition(":")
                self.upstream = (
                    http.client.HTTPConnection(host, int(port), timeout=IDLE_SECONDS)
                    if self.server.inside is None
                    else http.client.HTTPSConnection(host, int(port), timeout=IDLE_SECONDS, context=self.server.inside)
                )
            try:
                self.upstream.request("POST", path, body, headers)
                answer = self.upstream.getresponse()
                content = answer.read()
                break
            except (OSError, http.client.HTTPException) as error:
                self.upstream.close()
                self.upstream = None
                if last or not isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                    self._respond(503, {"error": "the server is not ready"})
                    return
        if answer.status >= 400 and answer.status != 503:
            why = to_single_line(content[:300].decode("utf-8", "replace"))
            log.warning("%s: %s: %s %s", self._sender_name(), path, answer.status, why)
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _has_known_key(self) -> bool:
        """Check that the request carries a key of the keys folder; Flower verifies the signature itself."""
        try:
            print_ = fingerprint_of_pem(base64.b64decode(self.headers.get(KEY_HEADER, ""), validate=True))
        except ValueError:
            self._refuse(401, "a request without a key")
            return False
        if print_ not in self.server.known_fingerprints():
            self._refuse(401, f"the key {print_} is not registered")
            return False
        return True

    def _verified_sender(self) -> str | None:
        """Return the name of the site that signed the request, 'anybody' without keys, None if it was refused."""
        keys = self.server.keys
        if keys is None:
            return "anybody"
        name, _, at = self.headers.get(SIGNED, "").partition(" ")
        try:
            recent = abs(time.time() - float(at)) < MAX_CLOCK_SKEW
            key = keys.sites()[name]
            genuine = has_valid_signature(key, f"{name} {at} {self.path}".encode(), self.headers.get(SIGNATURE, ""))
        except (KeyError, ValueError, OffbeatError):
            recent, genuine = True, False
        if genuine and recent:
            return name
        if genuine:
            self._refuse(401, f"the clocks of {name} and the server differ by more than {MAX_CLOCK_SKEW:.0f} seconds")
        else:
            self._refuse(401, f"the key of {to_single_line(name, 40) or 'an unnamed site'} is not registered here")
        return None

    def _sender_name(self) -> str:
        """Return the name of the site and its address, for the log."""
        key = self.headers.get(KEY_HEADER)
        name = None
        if key and self.server.keys:
            with suppress(ValueError):
                name = self.server.known_fingerprints().get(fingerprint_of_pem(base64.b64decode(key)))
        return f"{name} at {self.client_address[0]}" if name else str(self.client_address[0])

    def _refuse(self, status: int, why: str) -> None:
        """Log a rejected request and answer it with an error."""
        log.warning("%s: rejected: %s", self.client_address[0], to_single_line(why, 200))
        self._respond(status, {"error": why}, close=True)

    def _respond(self, status: int, value: object, close: bool = False) -> None:
        """Answer with a JSON document."""
        content = json.dumps(value).encode()
        self.send_response_only(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        if close:
            self.send_header("connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(content)

    def finish(self) -> None:
        """Close the connection to the SuperLink too."""
        if self.upstream is not None:
            self.upstream.close()
        super().finish()


def _explain_tls_error(error: ssl.SSLError) -> str:
    """Explain a TLS error in plain words."""
    reason = str(error.reason or error)
    if "UNKNOWN_CA" in reason or "CERTIFICATE_UNKNOWN" in reason or "BAD_CERTIFICATE" in reason:
        return f"it does not trust this server's certificate: issued by another CA or for another name ({reason})"
    if "CERTIFICATE_EXPIRED" in reason:
        return f"this server's certificate has expired ({reason})"
    return reason


def main() -> None:
    """Run a gateway until the process is terminated."""
    parser = argparse.ArgumentParser(prog="offbeat.deploy.gateway")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--link", required=True)
    parser.add_argument("--live", type=Path, required=True)
    parser.add_argument("--keys", type=Path)
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.Formatter.converter = time.gmtime
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    keys = ServerKeys(options.keys) if options.keys is not None else None
    gateway = Gateway(options.host, options.port, options.link, options.live, keys)
    protocol = "TLS" if keys else "plain"
    log.info("%s: listening on %s:%s since %s", protocol, options.host, options.port, datetime.now(UTC).date())
    gateway.serve_forever()


if __name__ == "__main__":
    main()
