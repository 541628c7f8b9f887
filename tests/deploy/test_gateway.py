"""The door: what passes, what does not, and what is said about it. Behind it stands a server that only echoes."""

from __future__ import annotations

import base64
import http.client
import logging
import shutil
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy import messages

pytest.importorskip("cryptography")

from offbeat.core.errors import ConfigError, RunError
from offbeat.deploy import gateway as doors
from offbeat.deploy import key_generation
from offbeat.deploy.child_processes import check_port_is_free, free_port
from offbeat.deploy.federation_keys import ServerKeys, SiteKeys
from offbeat.deploy.gateway import Gateway
from offbeat.deploy.preflight import is_loopback, query_server, split_address
from waiting import MAX_WAIT_SECONDS


class Echo(BaseHTTPRequestHandler):
    """Stands for Flower's SuperLink."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(412 if self.path.endswith("activate-node") else 200)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-path", self.path)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "keys"
    made.mkdir()
    key_generation.make_authority(made, 30)
    key_generation.make_server(made, [], 30)
    key_generation.make_site(made, "hospital-a")
    return made


@pytest.fixture
def open_door(tmp_path):
    """Opens one, with keys or without; gives its address."""
    (tmp_path / "run" / "live").mkdir(parents=True)
    servers = []

    def opened(folder=None) -> str:
        behind = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
        if folder is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server.pem", folder / "server.key")
            behind.socket = context.wrap_socket(behind.socket, server_side=True)
        link = f"127.0.0.1:{behind.server_address[1]}"
        door = Gateway("127.0.0.1", 0, link, tmp_path / "run", None if folder is None else ServerKeys(folder))
        for server in (behind, door):
            servers.append(server)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"127.0.0.1:{door.server_address[1]}"

    yield opened
    for server in servers:
        server.shutdown()
        server.server_close()


def post(address, path, body=b"x", headers=None, ca=None):
    if ca is None:
        connection = http.client.HTTPConnection(address, timeout=MAX_WAIT_SECONDS)
    else:
        connection = http.client.HTTPSConnection(
            address, timeout=MAX_WAIT_SECONDS, context=ssl.create_default_context(cafile=ca)
        )
    try:
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def key_header(public):
    from flwr.cli.supernode.register import try_load_public_key

    return {doors.KEY_HEADER: base64.b64encode(try_load_public_key(public)).decode()}


def test_a_sites_messages_pass_both_ways_also_large_ones(open_door):
    body = bytes(range(256)) * 40_000  # 10 MB
    assert post(open_door(), "/v1/fleet/push-object", body) == (200, body)


def test_many_messages_pass_over_one_connection(open_door):
    connection = http.client.HTTPConnection(open_door(), timeout=MAX_WAIT_SECONDS)
    for i in range(5):
        connection.request("POST", "/v1/fleet/pull-messages", str(i).encode())
        assert connection.getresponse().read() == str(i).encode()
    connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/docs",
        "/v1/fleet/",
        "/v1/fleet/a?b",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "http://127.0.0.1/v1/fleet/pull-messages",
    ],
)
def test_nothing_else_of_flower_can_be_reached(open_door, path, caplog):
    assert post(open_door(), path)[0] == 403
    assert messages.NOT_ALLOWED in caplog.text


def test_a_request_that_is_too_large_is_refused_before_it_is_read(open_door):
    address = open_door()
    with socket.create_connection(address.split(":"), timeout=MAX_WAIT_SECONDS) as connection:
        head = (
            f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: {doors.MAX_REQUEST_BYTES + 1}\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert b"413" in connection.recv(100)


@pytest.mark.parametrize("header", ["transfer-encoding: chunked", "content-length: -1", "content-length: 1e3", "a: b"])
def test_a_request_without_a_plain_length_is_refused(open_door, header):
    with socket.create_connection(open_door().split(":"), timeout=MAX_WAIT_SECONDS) as connection:
        connection.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n".encode())
        assert b"411" in connection.recv(100)


def test_with_keys_only_registered_ones_pass_and_those_taken_away_no_longer(open_door, folder, caplog, monkeypatch):
    address, ca = open_door(folder), folder / "ca.pem"
    own = key_header(folder / "sites" / "hospital-a" / "site.pub")
    assert post(address, "/v1/fleet/pull-messages", b"y", own, ca) == (200, b"y")
    assert post(address, "/v1/fleet/pull-messages", b"y", {}, ca)[0] == 401
    assert post(address, "/v1/fleet/pull-messages", b"y", {doors.KEY_HEADER: "AAAA"}, ca)[0] == 401
    caplog.clear()
    shutil.rmtree(folder / "sites" / "hospital-a")
    monkeypatch.setattr(doors.time, "monotonic", lambda start=doors.time.monotonic(): start + 60)
    assert post(address, "/v1/fleet/pull-messages", b"y", own, ca)[0] == 401
    assert "SHA256:" in caplog.text
    assert messages.KEY_NOT_REGISTERED in caplog.text


def test_what_flower_refuses_is_logged_with_the_sites_name(open_door, folder, caplog):
    own = key_header(folder / "sites" / "hospital-a" / "site.pub")
    assert post(open_door(folder), "/v1/fleet/activate-node", b"no", own, folder / "ca.pem") == (412, b"no")
    assert messages.FLOWER_REFUSED in caplog.text


def test_the_server_is_found_and_knows_the_site(open_door, folder):
    said = query_server(open_door(folder), "/offbeat/hello", SiteKeys(folder / "sites" / "hospital-a"), "hospital-a")
    assert said["you"] == "hospital-a"


def test_without_keys_anybody_on_this_machine_may_ask(open_door):
    address = open_door()
    assert query_server(address, "/offbeat/hello", None, "")["you"] == "anybody"
    assert query_server(address, "/offbeat/status", None, "")["state"] == "not started"


def refusal(address, site=None, name="hospital-a"):
    with pytest.raises(RunError) as error:
        query_server(address, "/offbeat/hello", site, name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_stands_in_the_way_is_said_in_one_line(open_door, folder, tmp_path, caplog):
    own = SiteKeys(folder / "sites" / "hospital-a")
    secure, plain = open_door(folder), open_door()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    key_generation.make_authority(theirs, 30)
    stranger = SiteKeys(key_generation.make_site(theirs, "stranger"))
    assert messages.OTHER_AUTHORITY in refusal(secure, stranger, "stranger")
    shutil.copy(folder / "ca.pem", stranger.ca)
    assert messages.STRANGER_NOT_REGISTERED in refusal(secure, stranger, "stranger")
    assert messages.HOSPITAL_NOT_REGISTERED in refusal(secure, stranger)  # another's name
    assert messages.USES_TLS in refusal(secure)
    assert messages.SPEAKS_NO_TLS in refusal(plain, own)
    assert messages.NO_SERVER_LISTENS in refusal(f"127.0.0.1:{free_port()}", own)
    assert messages.HOST_UNKNOWN in refusal("no-such-host.invalid:1", own)
    for reason in ("UNKNOWN_CA", "the key of stranger is not registered", "does not speak TLS (plain HTTP"):
        assert reason in caplog.text


def test_a_name_that_the_certificate_does_not_have_is_said(open_door, folder, monkeypatch):
    own, address = SiteKeys(folder / "sites" / "hospital-a"), open_door(folder)
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: real("127.0.0.1", *a, **k))
    assert "is not for 'elsewhere'" in refusal(address.replace("127.0.0.1", "elsewhere"), own)


def test_clocks_that_differ_are_said(open_door, folder, monkeypatch):
    own, address = SiteKeys(folder / "sites" / "hospital-a"), open_door(folder)
    monkeypatch.setattr(doors, "MAX_CLOCK_SKEW", -1.0)
    assert "the clocks of hospital-a and the server differ" in refusal(address, own)


def test_something_else_that_listens_is_no_server_of_ours(open_door):
    behind = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=behind.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    assert "is not an offbeat server" in refusal(f"127.0.0.1:{behind.server_address[1]}")
    behind.shutdown()
    behind.server_close()


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_an_address_is_a_host_and_a_port(address):
    with pytest.raises(ConfigError, match=messages.INVALID_ADDRESS):
        split_address(address)


def test_loopback_is_this_machine_only():
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("10.0.0.1")
    assert split_address("[::1]:8443") == ("::1", 8443)


def test_a_port_in_use_and_an_address_of_others_are_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=messages.PORT_IN_USE):
            check_port_is_free("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match=messages.UNKNOWN_HOST_ADDRESS):
        check_port_is_free("192.0.2.1", 8443)  # of the block for documentation


@pytest.fixture(autouse=True)
def log_is_seen(caplog):
    caplog.set_level(logging.WARNING, "offbeat.door")
