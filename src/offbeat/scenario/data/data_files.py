"""Find the files of data sets under the data root, download or unpack them, and read tables and matrices of numbers.

The data root is the folder named by OFFBEAT_DATA (`--data` sets it), else a folder in the user's cache. A missing file
is unpacked from its archive if that is there, else downloaded from its official address. OFFBEAT_DOWNLOAD=0 forbids
downloads.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import http.client
import io
import os
import sys
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import DataError, MissingData
from offbeat.scenario.data.archives import GZIP_MAGIC, MAX_UNPACKED_BYTES, unpack

DOWNLOAD_TIMEOUT = 20.0  # seconds without an answer
CHUNK_BYTES = 2**20
MAX_DOWNLOAD_BYTES = 2 * 10**9  # more than any file that is downloaded has


@dataclass(frozen=True, kw_only=True)
class Published:
    """A file as its authors publish it."""

    name: str
    urls: tuple[str, ...] = ()  # tried in this order; none: it is large, or a licence has to be accepted first
    checksum: str | None = None  # MD5 or SHA-256, in hexadecimal; a file without one is not downloaded
    max_unpacked: int = MAX_UNPACKED_BYTES


class DownloadFailed(Exception):
    """A download did not succeed; the message says why."""


def named_root() -> Path | None:
    """Return the absolute data root if OFFBEAT_DATA names one."""
    folder = os.environ.get("OFFBEAT_DATA")
    return Path(os.path.abspath(expand_path(folder))) if folder else None


def data_root() -> Path:
    """Return the folder below which the files of data sets are."""
    folder = os.environ.get("OFFBEAT_DATA")
    if folder:
        return expand_path(folder)
    return expand_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "offbeat"


def below_root(name: str) -> Path:
    """Return the path of a user's file or folder; a relative path starts at the data root.

    If it does not exist there and OFFBEAT_DATA is set, it may have been moved: then look for its last component
    directly in the root, or as the root itself.
    """
    root, path = named_root(), data_root() / expand_path(name)
    if root is None or path.exists():
        return path
    return next((place for place in (root / path.name, root) if place.name == path.name and place.exists()), path)


def expand_path(path: str | Path) -> Path:
    """Replace a leading ~ by the user's home folder."""
    if "\0" in str(path):
        raise DataError(f"{str(path)!r} is not a path: it contains a NUL character")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"{str(path)!r} is not a path: there is no such user") from None


def find_file(
    folder: str, names: tuple[str, ...], checksum: str | None = None, urls: tuple[str, ...] = (), page: str = ""
) -> Path:
    """Return the first of these files under the data root, or download the first name; `checksum` belongs to it."""
    existing = next((path for name in names if (path := data_root() / folder / name).is_file()), None)
    if existing is not None and existing.name != names[0]:
        return existing
    return _fetch(folder, Published(name=names[0], urls=urls, checksum=checksum), page)


def find_folder(folder: str, wanted: tuple[str, ...], archive: Published | None = None, page: str = "") -> Path:
    """Return the data set's folder after unpacking its archive if one of the `wanted` entries is missing."""
    home = data_root() / folder
    missing = [home / name for name in wanted if not (home / name).exists()]
    if not missing:
        return home
    if archive is None:
        raise MissingData(_missing_message(missing[0], page))
    path = _fetch(folder, archive, page, f" (or its contents, such as {missing[0]})")
    before = {entry for entry in (home / Path(name).parts[0] for name in wanted) if entry.exists()}
    unpack(path, home, archive.max_unpacked)
    missing = [file for file in missing if not file.exists()]
    if not missing:
        return home
    top = home / missing[0].relative_to(home).parts[0]
    if top in before:  # existing entries are never overwritten
        raise DataError(f"{missing[0]} is missing, and {path} may contain it: remove {top} so that it can be unpacked")
    raise DataError(f"{path} was unpacked and {missing[0]} is still missing: it is not the published archive")


def find_files(folder: str, patterns: tuple[str, ...], archive: Published, page: str) -> list[Path]:
    """Return all files of these patterns in the data set's folder, at any depth; unpack its archive if none exists."""
    home = data_root() / folder
    files = _matching_files(home, patterns)
    if not files:
        path = _fetch(folder, archive, page, f" (or its contents, {patterns[0]})")
        unpack(path, home, archive.max_unpacked)
        files = _matching_files(home, patterns)
    if not files:
        raise DataError(f"{path} was unpacked and contains no {patterns[0]}: it is not the published archive")
    return files


def read_bytes(path: Path, most: int = 2**28) -> bytes:
    """Read a whole file, gzipped or not; refuse more than `most` bytes (default: ten times the largest table)."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP_MAGIC
        with (gzip.open if packed else open)(path, "rb") as stream:
            data: bytes = stream.read(most + 1)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put the file there") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is truncated or damaged") from None
    except OSError as error:
        raise cannot_read(path, error) from None
    if len(data) > most:
        raise DataError(f"{path} has more than {most:,} bytes: it is not the published file")
    return data


def cannot_read(path: Path, error: OSError) -> DataError:
    """Build the error for a file that exists and cannot be read."""
    return DataError(f"cannot read {path}: {error.strerror or error}")


def truncated(problem: str) -> DataError:
    """Build the error for a file that seems to be cut off."""
    return DataError(f"{problem}: the file is truncated or damaged")


def download(urls: tuple[str, ...], path: Path, checksum: str | None) -> None:
    """Download from the first address that works; the file appears under its name once it is complete and verified."""
    if not urls or checksum is None:  # a file that cannot be verified is not downloaded
        raise DownloadFailed("it is not downloaded automatically")
    if os.environ.get("OFFBEAT_DOWNLOAD", "1").lower() in ("0", "no", "off", "false"):
        raise DownloadFailed("OFFBEAT_DOWNLOAD forbids downloads")
    reasons = []
    for url in urls:
        try:
            _download_from(url, path, checksum)
            return
        except urllib.error.HTTPError as error:
            reasons.append(f"{url} answers {error.code}")
        except urllib.error.URLError as error:
            reasons.append(f"{url}: {getattr(error.reason, 'strerror', None) or error.reason}")
        except (OSError, http.client.HTTPException) as error:
            reasons.append(f"{url}: {getattr(error, 'strerror', None) or error or type(error).__name__}")
    raise DownloadFailed("download failed: " + "; ".join(reasons))


def _download_from(url: str, path: Path, checksum: str) -> None:
    """Download to a temporary file beside `path`, verify it, and rename it."""
    if not url.startswith(("http://", "https://")):
        raise OSError("only http and https addresses are downloaded")
    path.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            sys.stderr.write(f"offbeat: downloading {url} to {path}\n")
            size = 0
            with open(handle, "wb") as file:
                while chunk := answer.read(CHUNK_BYTES):
                    size += len(chunk)
                    if size > MAX_DOWNLOAD_BYTES:
                        raise OSError(f"more than {MAX_DOWNLOAD_BYTES:,} bytes arrive: it is not the published file")
                    file.write(chunk)
            promised = answer.headers.get("Content-Length")
            if promised is not None and int(promised) != size:
                raise OSError(f"{size} of {promised} bytes arrived")
            kind, actual = compute_checksum(Path(part), checksum)
            if actual != checksum:
                raise OSError(f"the download has {kind} {actual}, the published file has {checksum}")
            os.replace(part, path)
        finally:
            Path(part).unlink(missing_ok=True)


def compute_checksum(path: Path, published: str) -> tuple[str, str]:
    """Return the kind of the published checksum, MD5 or SHA256, and this checksum of the file."""
    kind = "sha256" if len(published) == 64 else "md5"
    with open(path, "rb") as file:
        return kind.upper(), hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _matching_files(home: Path, patterns: tuple[str, ...]) -> list[Path]:
    """List the files; skip hidden folders (unfinished unpacking) and the `__MACOSX` folders of macOS archives."""
    files = {path for pattern in patterns for path in home.rglob(pattern)} if home.is_dir() else set()
    return sorted(
        path for path in files if not any(p.startswith(".") or p == "__MACOSX" for p in path.relative_to(home).parts)
    )


def _fetch(folder: str, wanted: Published, page: str, instead: str = "") -> Path:
    """Return the published file: verify it if it exists, download it otherwise."""
    path = data_root() / folder / wanted.name
    if not path.is_file():
        try:
            download(wanted.urls, path, wanted.checksum)
        except DownloadFailed as error:
            raise MissingData(_missing_message(path, page, instead, f" ({error})")) from None
    elif wanted.checksum is not None:
        try:
            kind, actual = compute_checksum(path, wanted.checksum)
        except OSError as error:
            raise cannot_read(path, error) from None
        if actual != wanted.checksum:
            raise DataError(f"{path} is damaged: its {kind} is {actual}, the published file has {wanted.checksum}")
    return path


def _missing_message(path: Path, page: str, instead: str = "", reason: str = "") -> str:
    """Return the message for a missing file: where to put it, or what instead, and why it was not downloaded."""
    root = f"set OFFBEAT_DATA to the folder that contains {path.relative_to(data_root())}"
    source = f"; download it from {page}" if page else ""
    return f"{path} is missing: put the file there{instead}, or {root}{source}{reason}"


# ---------------------------------------------------------------- tables


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a text file, gzipped or not."""
    try:
        return read_bytes(path).decode(encoding)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not {encoding} text") from None


def read_matrix(path: Path) -> NDArray[np.float64]:
    """Read a file of numbers, separated by white space, with the same number of them in every row."""
    values = parse_matrix(path, read_text(path).splitlines())
    if values.size == 0:
        raise DataError(f"{path} is empty")
    return values


def parse_matrix(
    path: Path, lines: Iterable[str], separator: str | None = None, columns: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """Parse rows of numbers with the same columns in every row."""
    try:
        return np.loadtxt(lines, dtype=np.float64, delimiter=separator, ndmin=2, usecols=columns)
    except ValueError as error:
        raise DataError(f"{path}: not a table of numbers ({str(error).splitlines()[0]})") from None


@dataclass(frozen=True)
class CsvTable:
    """The cells of a CSV file; table[name] is a column."""

    names: list[str]
    rows: list[list[str]]

    def __getitem__(self, name: str) -> list[str]:
        column = self.names.index(name)
        return [row[column] for row in self.rows]


def read_table(path: Path, wanted: tuple[str, ...]) -> CsvTable:
    """Read a CSV file that has at least the wanted columns and as many cells in every row as in the header."""
    text = read_text(path)
    try:
        header, *rows = csv.reader(io.StringIO(text, newline=""))
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file ({error})") from None
    except ValueError:  # no row at all
        raise DataError(f"{path} is empty") from None
    names = [name.strip().lstrip("\ufeff") for name in header]
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise DataError(f"{path} has no column {missing[0]!r}; its columns: {shown}")
    body = []
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != len(names):
            raise truncated(f"{path} row {number} has {len(row)} cells, the header {len(names)}")
        body.append(row)
    if not body:
        raise DataError(f"{path} has a header and no rows")
    return CsvTable(names, body)


def parse_numbers(path: Path, name: str, cells: Sequence[str], missing: tuple[str, ...] = ()) -> NDArray[np.float64]:
    """Convert a column to numbers; cells that mark missing values become NaN."""
    gaps = set(missing)
    try:
        values = np.array([np.nan if cell in gaps else float(cell) for cell in cells])
        if not np.isinf(values).any():
            return values
    except ValueError:
        pass
    bad = next(i for i, cell in enumerate(cells) if cell not in gaps and not _is_number(cell))
    raise DataError(f"{path}: {name} = {cells[bad]!r} in row {bad + 2} is not a number")


def _is_number(cell: str) -> bool:
    """Check whether a cell is a number other than infinity."""
    try:
        return not isinf(float(cell))
    except ValueError:
        return False
