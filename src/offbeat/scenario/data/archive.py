"""Zip and tar archives, unpacked beside themselves: nothing may land outside, and a half-unpacked folder never shows."""

from __future__ import annotations

import fcntl
import lzma
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

ROOM = ".unpacking-"
FRESH = 60.0  # seconds: a room this new may not be locked yet


def unpack(path: Path, into: Path) -> None:
    """All members of the archive below `into`. What is there already stays as it is."""
    try:
        into.mkdir(parents=True, exist_ok=True)
        _sweep(into)
        room = Path(tempfile.mkdtemp(prefix=ROOM, dir=into))
        mine = os.open(room, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"cannot unpack {path} into {into}: {error.strerror or error}") from None
    try:
        with suppress(OSError):  # some network drives have no locks
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (_unzip if zipfile.is_zipfile(path) else _untar)(path, room)
        _move(room, into)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError):
        raise DataError(f"{path} is no whole archive: it is cut short or damaged") from None
    except OSError as error:
        raise DataError(f"cannot unpack {path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(room, ignore_errors=True)
        os.close(mine)


def _sweep(into: Path) -> None:
    """Remove what killed processes left: a room that is not new and that nobody holds (a lock goes with its process)."""
    for room in into.glob(f"{ROOM}*"):
        with suppress(OSError):
            if time.time() - room.stat().st_mtime < FRESH:
                continue
            held = os.open(room, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(room, ignore_errors=True)
            finally:
                os.close(held)


def _unzip(path: Path, room: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _refuse_escape(path, member.filename)
            if (member.external_attr >> 16) & 0o170000 == 0o120000:
                raise DataError(f"{path} holds the link {member.filename!r}: refused")
            if member.flag_bits & 1:
                raise DataError(f"{path} is encrypted: unpack it beside itself, with its password")
        archive.extractall(room)


def _untar(path: Path, room: Path) -> None:
    with tarfile.open(path) as archive:
        for member in archive:
            _refuse_escape(path, member.name)
            if member.isdir() or member.isfile():
                archive.extract(member, room, set_attrs=False, **FILTER)
            else:
                raise DataError(f"{path} holds {member.name!r}, which is no file and no folder: refused")


def _refuse_escape(path: Path, name: str) -> None:
    inside = PurePosixPath(name.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts or ":" in name.split("/")[0]:
        raise DataError(f"{path} holds {name!r}, which would land outside the data root: refused")


def _move(room: Path, into: Path) -> None:
    """Whole entries at once: another process that unpacks the same archive meets all of an entry or nothing."""
    for entry in sorted(room.iterdir()):
        if not (into / entry.name).exists():
            try:
                os.replace(entry, into / entry.name)
            except OSError:
                if not (into / entry.name).exists():  # else somebody was faster
                    raise
