"""Zip and tar archives, unpacked beside themselves: nothing may land outside, and a half-unpacked folder never shows.

How much comes out is bounded: six megabytes can hold six gigabytes of nothing.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from offbeat.core.errors import DataError

# names and links are checked here in any case; Python has had its own filter since 3.11.4
FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

MOST = 2 * 10**9  # bytes, unless a data set says otherwise: more than any published archive here holds
OVERHEAD = 2**26  # bytes of a tar that are no data: headers, and what fills its blocks up
GZIP = b"\x1f\x8b"
MEMBERS = 200_000  # Tiny-ImageNet, the one of most, has 120,609
STAGING = ".unpacking-"
TORN = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError, ValueError)
FRESH = 60.0  # seconds: one this new may not be locked yet


def unpack(path: Path, into: Path, most: int = MOST) -> None:
    """All members of the archive below `into`, `most` bytes at most. What is there already stays as it is."""
    try:
        into.mkdir(parents=True, exist_ok=True)
        _sweep(into)
        staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=into))
        mine = os.open(staging, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"cannot unpack {path} into {into}: {error.strerror or error}") from None
    try:
        with suppress(OSError, ImportError):  # some network drives have no locks, some systems neither
            _hold(mine)
        (_unzip if zipfile.is_zipfile(path) else _untar)(path, staging, most)
        _move(staging, into)
    except DataError:
        raise
    except TORN:
        raise DataError(f"{path} is no whole archive: it is cut short or damaged") from None
    except OSError as error:
        raise DataError(f"cannot unpack {path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(mine)


def _hold(staging: int) -> None:
    import fcntl  # of POSIX alone, and needed by nobody who unpacks nothing

    fcntl.flock(staging, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep(into: Path) -> None:
    """Remove what killed processes left: folders that are not new and that nobody holds (locks go with processes)."""
    for staging in into.glob(f"{STAGING}*"):
        with suppress(OSError, ImportError):
            if time.time() - staging.stat().st_mtime < FRESH:
                continue
            held = os.open(staging, os.O_RDONLY)
            try:
                _hold(held)
                shutil.rmtree(staging, ignore_errors=True)
            finally:
                os.close(held)


def _unzip(path: Path, staging: Path, most: int) -> None:
    with zipfile.ZipFile(path) as archive:
        _count(path, len(archive.infolist()))
        if sum(member.file_size for member in archive.infolist()) > most:  # no member gives more than it says here
            raise _too_large(path, most)
        for member in archive.infolist():
            _refuse_escape(path, member.filename)
            if (member.external_attr >> 16) & 0o170000 == 0o120000:
                raise DataError(f"{path} holds the link {member.filename!r}: refused")
            if member.flag_bits & 1:
                raise DataError(f"{path} is encrypted: unpack it beside itself, with its password")
        archive.extractall(staging)


def _untar(path: Path, staging: Path, most: int) -> None:
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP
    with (
        (gzip.open if packed else open)(path, "rb") as stream,
        tarfile.open(fileobj=_Bounded(path, stream, most), mode="r|") as archive,
    ):
        held = 0
        for count, member in enumerate(archive, 1):
            _count(path, count)
            held += member.size  # a sparse one takes less space in the archive than it does here
            if held > most:
                raise _too_large(path, most)
            _refuse_escape(path, member.name)
            if member.isdir() or member.isfile():
                archive.extract(member, staging, set_attrs=False, **FILTER)
            else:
                raise DataError(f"{path} holds {member.name!r}, which is no file and no folder: refused")


class _Bounded(io.RawIOBase):
    """A stream that ends in an error where more comes out than may; headers, read into memory whole, count too."""

    def __init__(self, path: Path, stream: io.BufferedIOBase, most: int) -> None:
        self._path, self._stream, self._most = path, stream, most
        self._left = most + OVERHEAD

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _too_large(self._path, self._most)
        return data


def _too_large(path: Path, most: int) -> DataError:
    return DataError(f"{path} holds more than {most:,} bytes when it is unpacked: it is no published archive, refused")


def _count(path: Path, members: int) -> None:
    if members > MEMBERS:
        raise DataError(f"{path} holds more than {MEMBERS:,} files and folders: it is no published archive, refused")


def _refuse_escape(path: Path, name: str) -> None:
    inside = PurePosixPath(name.replace("\\", "/"))
    if not inside.parts:
        raise DataError(f"{path} holds {name!r}, which is no name: refused")
    if inside.is_absolute() or ".." in inside.parts or ":" in name.split("/")[0]:
        raise DataError(f"{path} holds {name!r}, which would land outside the data root: refused")


def _move(staging: Path, into: Path) -> None:
    """Whole entries at once: another process that unpacks the same archive meets all of an entry or nothing."""
    for entry in sorted(staging.iterdir()):
        if not (into / entry.name).exists():
            try:
                os.replace(entry, into / entry.name)
            except OSError:
                if not (into / entry.name).exists():  # else somebody was faster
                    raise
