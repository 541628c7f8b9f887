"""Published files from their official addresses: whole and checked, or not at all. OFFBEAT_DOWNLOAD=0 forbids it."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

_TIMEOUT = 20.0  # seconds without an answer
_CHUNK = 2**20
MOST = 2 * 10**9  # bytes: more than any file that is downloaded has


class Failed(Exception):
    """Why there is no file."""


def algorithm(checksum: str) -> str:
    """Which a checksum is, by its length."""
    return "sha256" if len(checksum) == 64 else "md5"


def download(urls: tuple[str, ...], path: Path, checksum: str | None) -> None:
    """The file from the first address that has it; it appears under its name when it is whole and right."""
    if not urls or checksum is None:  # what nobody can check is not fetched
        raise Failed("it is not downloaded for you")
    if os.environ.get("OFFBEAT_DOWNLOAD", "1").lower() in ("0", "no", "off", "false"):
        raise Failed("OFFBEAT_DOWNLOAD forbids downloads")
    reasons = []
    for url in urls:
        try:
            _one(url, path, checksum)
            return
        except urllib.error.HTTPError as error:
            reasons.append(f"{url} answers {error.code}")
        except urllib.error.URLError as error:
            reasons.append(f"{url}: {getattr(error.reason, 'strerror', None) or error.reason}")
        except (OSError, http.client.HTTPException) as error:
            reasons.append(f"{url}: {getattr(error, 'strerror', None) or error or type(error).__name__}")
    raise Failed("download failed: " + "; ".join(reasons))


def _one(url: str, path: Path, checksum: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise OSError("only http and https addresses are downloaded")
    path.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            sys.stderr.write(f"offbeat: downloading {url} to {path}\n")
            with open(handle, "wb") as file:
                found, size = _copy(answer, file, algorithm(checksum))
            promised = answer.headers.get("Content-Length")
            if promised is not None and int(promised) != size:
                raise OSError(f"{size} of {promised} bytes arrived")
            if found != checksum:
                kind = algorithm(checksum).upper()
                raise OSError(f"what arrived has {kind} {found}, the published file has {checksum}")
            os.replace(part, path)
        finally:
            if os.path.exists(part):
                os.unlink(part)


def _copy(source: IO[bytes], target: IO[bytes], kind: str) -> tuple[str, int]:
    """(checksum, bytes) of what was copied."""
    digest, size = hashlib.new(kind, usedforsecurity=False), 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if size > MOST:
            raise OSError(f"more than {MOST:,} bytes arrive: it is no published file")
        target.write(chunk)
    return digest.hexdigest(), size
