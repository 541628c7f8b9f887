"""Checks before a site starts: Flower is installed, and the server is reachable, genuine and knows the site."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import time
from importlib.util import find_spec

from offbeat.core.errors import ConfigError, RunError
from offbeat.deploy.federation_keys import SiteKeys, sign

SIGNED, SIGNATURE = "offbeat-signed", "offbeat-signature"  # headers of offbeat's own requests
TIMEOUT = 10.0


def split_address(address: str) -> tuple[str, int]:
    """Parse HOST:PORT, also with an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is not HOST:PORT, for example server.example.org:8443")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Check that a host is reachable only from this machine; a name must have loopback addresses only."""
    try:
        addresses = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return False
    return bool(addresses) and all(address.is_loopback for address in addresses)


def query_server(address: str, path: str, keys: SiteKeys | None, name: str) -> dict[str, object]:
    """Ask the gateway of a server and return its answer; raise RunError with one line if that fails."""
    host, port = split_address(address)
    where = f"the server at {address}"
    headers, connection = {}, http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    if keys is not None:
        at = f"{time.time():.0f}"
        headers = {SIGNED: f"{name} {at}", SIGNATURE: sign(keys.key, f"{name} {at} {path}".encode())}
        context = ssl.create_default_context(cafile=str(keys.ca))
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        content = answer.read(1 << 24)
    except ssl.SSLCertVerificationError as error:
        raise RunError(_explain_distrust(where, host, error, keys)) from None
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"):
            raise RunError(
                f"{where} does not speak TLS: it was started with --insecure or is not an offbeat server"
            ) from None
        raise RunError(f"no secure connection to {where}: {error.reason or error}") from None
    except socket.gaierror:
        raise RunError(f"host {host!r} is unknown: check --server {address}") from None
    except TimeoutError:
        raise RunError(f"no answer from {address} within {TIMEOUT:.0f} seconds: is a firewall in between?") from None
    except ConnectionRefusedError:
        raise RunError(
            f"no server listens at {address}: start 'offbeat serve' there first and check host and port"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        hint = "" if keys is not None else " (if it uses TLS, add --keys)"
        raise RunError(f"{where} sent an invalid answer: {error or type(error).__name__}{hint}") from None
    finally:
        connection.close()
    return _parse_answer(where, answer.status, content, keys)


def _parse_answer(where: str, status: int, content: bytes, keys: SiteKeys | None) -> dict[str, object]:
    """Return the JSON document of an answer; raise RunError unless an offbeat server sent it."""
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if status == 400 and keys is None and not content:
        raise RunError(f"{where} uses TLS: give the folder of this site's keys with --keys")
    if not isinstance(answer, dict) or (status == 200 and "offbeat" not in answer and "state" not in answer):
        raise RunError(f"{where} is not an offbeat server: it answered with status {status}")
    if status != 200:
        raise RunError(f"{where} answered: {answer.get('error', status)}")
    return answer


def _explain_distrust(where: str, host: str, error: ssl.SSLCertVerificationError, keys: SiteKeys | None) -> str:
    """Explain why the server's certificate is not accepted."""
    assert keys is not None
    code = error.verify_code
    if code in (10, 9):  # X509_V_ERR_CERT_HAS_EXPIRED, …_NOT_YET_VALID
        when = "has expired" if code == 10 else "is not valid yet (check the clock of this machine)"
        return f"the certificate of {where} {when}; make a new one there with 'offbeat keys --host {host}'"
    if code in (62, 64):  # …_HOSTNAME_MISMATCH, …_IP_ADDRESS_MISMATCH
        return f"the certificate of {where} is not for {host!r}: make one with 'offbeat keys --host {host}'"
    return (
        f"the certificate of {where} was not signed by the authority in {keys.ca}: the wrong server, or the keys of "
        f"another federation ({error.verify_message})"
    )


def require_flower() -> None:
    """Raise ConfigError if Flower is not installed."""
    if find_spec("flwr") is None:
        raise ConfigError("this needs Flower, which is not installed: pip install 'offbeat[flower]'")
