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


class Failed(Exception):
    """Why there is no file."""


def download(urls: tuple[str, ...], path: Path, md5: str | None = None) -> None:
    """The file from the first address that has it. It appears under its name when it is whole and its checksum right."""
    if not urls:
        raise Failed("it is not downloaded for you")
    if os.environ.get("OFFBEAT_DOWNLOAD", "1").lower() in ("0", "no", "off", "false"):
        raise Failed("OFFBEAT_DOWNLOAD forbids downloads")
    reasons = []
    for url in urls:
        try:
            _one(url, path, md5)
            return
        except urllib.error.HTTPError as error:
            reasons.append(f"{url} answers {error.code}")
        except urllib.error.URLError as error:
            reasons.append(f"{url}: {getattr(error.reason, 'strerror', None) or error.reason}")
        except (OSError, http.client.HTTPException) as error:
            reasons.append(f"{url}: {getattr(error, 'strerror', None) or error or type(error).__name__}")
    raise Failed("download failed: " + "; ".join(reasons))


def _one(url: str, path: Path, md5: str | None) -> None:
    if not url.startswith(("http://", "https://")):
        raise OSError("only http and https addresses are downloaded")
    path.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            sys.stderr.write(f"offbeat: downloading {url} to {path}\n")
            with open(handle, "wb") as file:
                found, size = _copy(answer, file)
            promised = answer.headers.get("Content-Length")
            if promised is not None and int(promised) != size:
                raise OSError(f"{size} of {promised} bytes arrived")
            if md5 is not None and found != md5:
                raise OSError(f"what arrived has MD5 {found}, the published file has {md5}")
            os.replace(part, path)
        finally:
            if os.path.exists(part):
                os.unlink(part)


def _copy(source: IO[bytes], target: IO[bytes]) -> tuple[str, int]:
    """(MD5, bytes) of what was copied."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        target.write(chunk)
    return digest.hexdigest(), size
