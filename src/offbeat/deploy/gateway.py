"""The door of a server: the one port that others reach. It lets sites' messages through to Flower, and nothing else.

Behind it Flower's SuperLink listens on loopback; its port would also take apps to run and keys to register from
whoever reaches it. With keys the door speaks TLS and knows whose key a request is signed with: a key that is not in
the folder of keys gets nothing, and one that is taken out of it gets nothing any more. What is turned away is logged.

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
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from offbeat import __version__
from offbeat.core.errors import OffbeatError, plain_text
from offbeat.deploy.federation_keys import ServerKeys, fingerprint, fingerprint_of_pem, is_signed

log = logging.getLogger("offbeat.door")

FLEET = re.compile(r"/v1/fleet/[a-z-]+")  # what a site needs of Flower
OWN = "/offbeat/"  # what a site asks the door itself
LARGEST = 64 << 20  # bytes of one request: Flower sends arrays in pieces of 20 MB at most
HANDSHAKE = 10.0  # seconds
IDLE = 120.0  # seconds that a connection may be silent
CROWD = 500  # connections at a time
SKEW = 60.0  # seconds that two clocks may differ
KEY = "flwr-public-key"  # headers that Flower's SuperNode sends,
SIGNED, SIGNATURE = "offbeat-signed", "offbeat-signature"  # and those of our own questions
HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "upgrade", "expect", "te", "trailer"}


class Door(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, link: str, live: Path, keys: ServerKeys | None) -> None:
        self.link, self.live, self.keys = link, live, keys
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._crowd = threading.Semaphore(CROWD)
        self._known: tuple[float, dict[str, str]] = (-1.0, {})
        self.outside = self.inside = None
        if keys is not None:
            self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.outside.minimum_version = ssl.TLSVersion.TLSv1_2
            self.outside.load_cert_chain(keys.certificate, keys.key)
            self.inside = ssl.create_default_context(cafile=str(keys.ca))
        super().__init__((host, port), Request)

    def known(self) -> dict[str, str]:
        """fingerprint -> name, as the folder has it now."""
        assert self.keys is not None
        since, names = self._known
        if time.monotonic() - since > 1.0:
            names = {fingerprint(path): name for name, path in self.keys.sites().items()}
            self._known = (time.monotonic(), names)
        return names

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In a thread of its own: a slow handshake holds up nobody else."""
        who = client_address[0]
        if not self._crowd.acquire(blocking=False):
            log.warning("%s: turned away, there are %s connections already", who, CROWD)
            self.shutdown_request(request)
            return
        try:
            request.settimeout(HANDSHAKE)
            if self.outside is not None:
                first = request.recv(1, socket.MSG_PEEK)
                if not first:  # somebody looked whether the port is open
                    self.shutdown_request(request)
                    return
                if first != b"\x16":
                    log.warning("%s: turned away, it does not speak TLS (plain HTTP to a TLS port?)", who)
                    request.sendall(b"HTTP/1.1 400 TLS only\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                    self.shutdown_request(request)
                    return
                request = self.outside.wrap_socket(request, server_side=True)
            request.settimeout(IDLE)
            super().process_request_thread(request, client_address)
        except ssl.SSLError as error:
            log.warning("%s: no secure connection: %s", who, _tls_words(error))
            self.shutdown_request(request)
        except OSError:  # it hung up
            self.shutdown_request(request)
        finally:
            self._crowd.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.exception("%s: a request failed", client_address[0])


class Request(BaseHTTPRequestHandler):
    server: Door
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "offbeat", ""
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet
    upstream: http.client.HTTPConnection | None = None

    def log_message(self, format: str, *arguments: Any) -> None:
        pass  # only what is turned away is worth a line

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not path.startswith(OWN):
            self._refuse(404, f"there is nothing at {path!r} for others")
            return
        if (who := self._asker()) is None:
            return
        if path == OWN + "hello":
            self._say(200, {"offbeat": __version__, "you": who})
        elif path == OWN + "status":
            from offbeat.deploy.live_overview import overview

            try:
                self._say(200, overview(self.server.live))
            except (OffbeatError, OSError) as error:
                self._say(503, {"error": str(error)})
        else:
            self._refuse(404, f"there is nothing at {path!r}")

    def do_POST(self) -> None:
        path = self.path
        if not FLEET.fullmatch(path):
            self._refuse(403, f"{path!r} is not for others")
            return
        if self.server.keys is not None and not self._known_key():
            return
        length = self.headers.get("content-length", "")
        if "transfer-encoding" in self.headers or not length.isdecimal():
            self._refuse(411, "a request without a length")
            return
        if int(length) > LARGEST:
            self._refuse(413, f"a request of {length} bytes; {LARGEST} are the most")
            return
        body = self.rfile.read(int(length))
        if len(body) == int(length):
            self._forward(path, body)

    def _forward(self, path: str, body: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        for last in (False, True):  # a connection that Flower has closed meanwhile is opened again, once
            if self.upstream is None:
                host, _, port = self.server.link.rpartition(":")
                self.upstream = (
                    http.client.HTTPConnection(host, int(port), timeout=IDLE)
                    if self.server.inside is None
                    else http.client.HTTPSConnection(host, int(port), timeout=IDLE, context=self.server.inside)
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
                    self._say(503, {"error": "the server is not ready"})
                    return
        if answer.status >= 400 and answer.status != 503:
            log.warning(
                "%s: %s: %s %s", self._who(), path, answer.status, plain_text(content[:300].decode("utf-8", "replace"))
            )
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    # ---------------------------------------------------------------- who is it

    def _known_key(self) -> bool:
        """Is the request signed with a key of the folder? Flower verifies the signature itself."""
        try:
            print_ = fingerprint_of_pem(base64.b64decode(self.headers.get(KEY, ""), validate=True))
        except ValueError:
            self._refuse(401, "a request without a key")
            return False
        if print_ not in self.server.known():
            self._refuse(401, f"the key {print_} is not registered")
            return False
        return True

    def _asker(self) -> str | None:
        """The name of the site that signed this question; anybody's without keys."""
        keys = self.server.keys
        if keys is None:
            return "anybody"
        name, _, at = self.headers.get(SIGNED, "").partition(" ")
        try:
            recent = abs(time.time() - float(at)) < SKEW
            key = keys.sites()[name]
            genuine = is_signed(key, f"{name} {at} {self.path}".encode(), self.headers.get(SIGNATURE, ""))
        except (KeyError, ValueError, OffbeatError):
            recent, genuine = True, False
        if genuine and recent:
            return name
        if genuine:
            self._refuse(401, f"the clocks of {name} and the server differ by more than {SKEW:.0f} seconds")
        else:
            self._refuse(401, f"the key of {plain_text(name, 40) or 'nobody'} is not registered here")
        return None

    def _who(self) -> str:
        key = self.headers.get(KEY)
        try:
            name = (
                self.server.known().get(fingerprint_of_pem(base64.b64decode(key))) if key and self.server.keys else None
            )
        except ValueError:
            name = None
        return f"{name} at {self.client_address[0]}" if name else str(self.client_address[0])

    # ---------------------------------------------------------------- answers

    def _refuse(self, status: int, why: str) -> None:
        log.warning("%s: turned away: %s", self.client_address[0], plain_text(why, 200))
        self._say(status, {"error": why}, close=True)

    def _say(self, status: int, value: Any, close: bool = False) -> None:
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
        if self.upstream is not None:
            self.upstream.close()
        super().finish()


def _tls_words(error: ssl.SSLError) -> str:
    """What a client's alert means."""
    reason = str(error.reason or error)
    if "UNKNOWN_CA" in reason or "CERTIFICATE_UNKNOWN" in reason or "BAD_CERTIFICATE" in reason:
        return f"it does not trust this server's certificate: another CA, or another name ({reason})"
    if "CERTIFICATE_EXPIRED" in reason:
        return f"it says this server's certificate has expired ({reason})"
    return reason


def main() -> None:
    parser = argparse.ArgumentParser(prog="offbeat.deploy.gateway")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--link", required=True)
    parser.add_argument("--live", type=Path, required=True)
    parser.add_argument("--keys", type=Path)
    given = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.Formatter.converter = time.gmtime
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    keys = ServerKeys(given.keys) if given.keys is not None else None
    door = Door(given.host, given.port, given.link, given.live, keys)
    log.info("%s: open at %s:%s since %s", "TLS" if keys else "plain", given.host, given.port, datetime.now(UTC).date())
    door.serve_forever()


if __name__ == "__main__":
    main()
