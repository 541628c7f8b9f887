"""Unpack zip and tar archives next to themselves, safely.

No member may be written outside the folder, a half-unpacked folder is never visible, and the unpacked size is limited:
six megabytes can unpack to six gigabytes.
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

from offbeat.core.errors import DataError

MAX_UNPACKED_BYTES = 2 * 10**9  # unless a data set says otherwise; no published archive used here has more
TAR_OVERHEAD_BYTES = 2**26  # headers of a tar file and the padding of its blocks
GZIP_MAGIC = b"\x1f\x8b"
MAX_MEMBERS = 200_000  # Tiny-ImageNet, the archive with the most members, has 120,609
STAGING_PREFIX = ".unpacking-"
MIN_STALE_SECONDS = 60.0  # a newer staging folder may not be locked yet
DAMAGED_ARCHIVE_ERRORS = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError, ValueError,
)  # fmt: skip


def unpack(path: Path, into: Path, most: int = MAX_UNPACKED_BYTES) -> None:
    """Unpack all members of the archive into a folder, at most `most` bytes; existing entries are not changed."""
    try:
        into.mkdir(parents=True, exist_ok=True)
        _remove_stale_folders(into)
        staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=into))
        handle = os.open(staging, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"cannot unpack {path} into {into}: {error.strerror or error}") from None
    try:
        with suppress(OSError, ImportError):  # some network drives and some systems have no locks
            _lock(handle)
        (_unzip if zipfile.is_zipfile(path) else _untar)(path, staging, most)
        _move_entries(staging, into)
    except DataError:
        raise
    except DAMAGED_ARCHIVE_ERRORS:
        raise DataError(f"{path} is not a complete archive: it is truncated or damaged") from None
    except OSError as error:
        raise DataError(f"cannot unpack {path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(handle)


def _lock(staging: int) -> None:
    """Lock an open folder; it stays locked until its handle is closed or the process ends."""
    import fcntl  # POSIX only

    fcntl.flock(staging, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_stale_folders(into: Path) -> None:
    """Remove staging folders of killed processes: those that are old and unlocked (locks end with their process)."""
    for staging in into.glob(f"{STAGING_PREFIX}*"):
        with suppress(OSError, ImportError):
            if time.time() - staging.stat().st_mtime < MIN_STALE_SECONDS:
                continue
            handle = os.open(staging, os.O_RDONLY)
            try:
                _lock(handle)
                shutil.rmtree(staging, ignore_errors=True)
            finally:
                os.close(handle)


def _unzip(path: Path, staging: Path, most: int) -> None:
    """Unpack a zip archive after a check of all its members."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_member_count(path, len(members))
        if sum(member.file_size for member in members) > most:  # zipfile never unpacks more than a member declares
            raise _too_large(path, most)
        for member in members:
            _check_member_name(path, member.filename)
            if (member.external_attr >> 16) & 0o170000 == 0o120000:
                raise DataError(f"{path} contains the link {member.filename!r}: refused")
            if member.flag_bits & 1:
                raise DataError(f"{path} is encrypted: unpack it in its folder with its password")
        archive.extractall(staging)


def _untar(path: Path, staging: Path, most: int) -> None:
    """Unpack a tar archive, gzipped or not, with a check of each member."""
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    with (
        (gzip.open if packed else open)(path, "rb") as stream,
        tarfile.open(fileobj=_LimitedStream(path, stream, most), mode="r|") as archive,
    ):
        # names and links are checked here in any case; Python has its own filter since 3.11.4
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        unpacked = 0
        for count, member in enumerate(archive, 1):
            _check_member_count(path, count)
            unpacked += member.size  # a sparse member is smaller in the archive than unpacked
            if unpacked > most:
                raise _too_large(path, most)
            _check_member_name(path, member.name)
            if member.isdir() or member.isfile():
                archive.extract(member, staging, set_attrs=False)
            else:
                raise DataError(f"{path} contains {member.name!r}, which is not a file or folder: refused")


class _LimitedStream(io.RawIOBase):
    """Raise an error once more than the limit is read; tar headers, which are read into memory, count too."""

    def __init__(self, path: Path, stream: io.BufferedIOBase, most: int) -> None:
        self._path, self._stream, self._most = path, stream, most
        self._left = most + TAR_OVERHEAD_BYTES

    def read(self, size: int = -1) -> bytes:
        """Read from the stream, and raise DataError if the limit is exceeded."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _too_large(self._path, self._most)
        return data


def _too_large(path: Path, most: int) -> DataError:
    """Build the error for an archive that unpacks to too many bytes."""
    return DataError(f"{path} unpacks to more than {most:,} bytes: it is not the published archive")


def _check_member_count(path: Path, members: int) -> None:
    """Refuse an archive with too many members."""
    if members > MAX_MEMBERS:
        raise DataError(f"{path} contains more than {MAX_MEMBERS:,} files and folders: it is not the published archive")


def _check_member_name(path: Path, name: str) -> None:
    """Refuse names of members that would be written outside the folder."""
    inside = PurePosixPath(name.replace("\\", "/"))
    if not inside.parts:
        raise DataError(f"{path} contains {name!r}, which is not a file name: refused")
    if inside.is_absolute() or ".." in inside.parts or ":" in name.split("/")[0]:
        raise DataError(f"{path} contains {name!r}, which would be written outside the data root: refused")


def _move_entries(staging: Path, into: Path) -> None:
    """Move complete entries, so another process that unpacks the same archive sees all of an entry or nothing."""
    for entry in sorted(staging.iterdir()):
        if not (into / entry.name).exists():
            try:
                os.replace(entry, into / entry.name)
            except OSError:
                if not (into / entry.name).exists():  # otherwise another process was faster
                    raise
