"""Where data sets lie: OFFBEAT_DATA (or --data, which sets it), else a folder of the user's cache.

What is missing is unpacked from its archive where that lies there, else downloaded from its official address, else
asked for: which file to put where.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import DataError, MissingData
from offbeat.scenario.data.archives import GZIP, MOST, unpack
from offbeat.scenario.data.download import Failed, algorithm, download


@dataclass(frozen=True, kw_only=True)
class Published:
    """A file as its authors publish it."""

    name: str
    urls: tuple[str, ...] = ()  # tried in this order; none: it is large, or a licence has to be accepted first
    checksum: str | None = None  # MD5 or SHA-256, in hexadecimal; without one it is not downloaded
    most: int = MOST  # bytes, unpacked


def given_root() -> Path | None:
    """The folder that somebody named as the data root."""
    given = os.environ.get("OFFBEAT_DATA")
    return Path(os.path.abspath(expanded(given))) if given else None


def data_root() -> Path:
    given = os.environ.get("OFFBEAT_DATA")
    if given:
        return expanded(given)
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "offbeat"


def below_root(given: str) -> Path:
    """A file or folder of the user's: a relative path is meant from the data root. One that is no longer where it was
    may have been moved to a root that is named: by its name, or as the root itself.
    """
    root, path = given_root(), data_root() / expanded(given)
    if root is None or path.exists():
        return path
    return next((place for place in (root / path.name, root) if place.name == path.name and place.exists()), path)


def expanded(given: str | Path) -> Path:
    """The path, with ~ as the user's home."""
    if "\0" in str(given):
        raise DataError(f"{str(given)!r} is no path: it holds a NUL")
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise DataError(f"{str(given)!r} is no path: there is no such user") from None


def find_file(
    folder: str, names: tuple[str, ...], checksum: str | None = None, urls: tuple[str, ...] = (), page: str = ""
) -> Path:
    """The first of these files under the data root, or the first name downloaded; `checksum` is that one's."""
    there = next((path for name in names if (path := data_root() / folder / name).is_file()), None)
    if there is not None and there.name != names[0]:
        return there
    return _whole(folder, Published(name=names[0], urls=urls, checksum=checksum), page)


def find_folder(folder: str, wanted: tuple[str, ...], archive: Published | None = None, page: str = "") -> Path:
    """The data set's folder with everything `wanted` in it, unpacked from its archive if it has to be."""
    home = data_root() / folder
    if all((home / name).exists() for name in wanted):
        return home
    missing = home / next(name for name in wanted if not (home / name).exists())
    if archive is None:
        raise MissingData(_please(missing, page))
    path = _whole(folder, archive, page, f" (or what it holds, such as {missing})")
    before = {home / Path(name).parts[0] for name in wanted if (home / Path(name).parts[0]).exists()}
    unpack(path, home, archive.most)
    lacking = next((home / name for name in wanted if not (home / name).exists()), None)
    if lacking is None:
        return home
    top = home / lacking.relative_to(home).parts[0]
    if top in before:  # what is there is never overwritten
        raise DataError(f"{lacking} is missing, and {path} may hold it: remove {top} so that it can be unpacked whole")
    raise DataError(f"{path} was unpacked and {lacking} is still missing: it is another archive than the published one")


def find_files(folder: str, patterns: tuple[str, ...], archive: Published, page: str) -> list[Path]:
    """All files of these patterns in the data set's folder, at any depth; of its archive, if there are none."""
    home = data_root() / folder
    found = _matching(home, patterns)
    if not found:
        path = _whole(folder, archive, page, f" (or what it holds, {patterns[0]})")
        unpack(path, home, archive.most)
        found = _matching(home, patterns)
    if not found:
        what = f"{home / archive.name} was unpacked and holds no {patterns[0]}"
        raise DataError(f"{what}: it is another archive than the published one")
    return found


def _matching(home: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Neither what a killed process left half unpacked, nor what a Mac puts into archives."""
    found = {path for pattern in patterns for path in home.rglob(pattern)} if home.is_dir() else set()
    return sorted(
        path for path in found if not any(p.startswith(".") or p == "__MACOSX" for p in path.relative_to(home).parts)
    )


def _whole(folder: str, wanted: Published, page: str, instead: str = "") -> Path:
    """The published file, checked where it is there, downloaded where it is not."""
    path = data_root() / folder / wanted.name
    try:
        if not path.is_file():
            download(wanted.urls, path, wanted.checksum)
        elif wanted.checksum is not None:
            _verify(path, wanted.checksum)
        return path
    except Failed as error:
        raise MissingData(_please(path, page, instead, f" ({error})")) from None


def _please(path: Path, page: str, instead: str = "", why: str = "") -> str:
    root = f"set OFFBEAT_DATA to the folder that holds {path.relative_to(data_root())}"
    return f"{path} is missing: put the file there{instead}, or {root}{f'; it comes from {page}' if page else ''}{why}"


def _verify(path: Path, checksum: str) -> None:
    kind = algorithm(checksum)
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if found != checksum:
        raise DataError(f"{path} is damaged: its {kind.upper()} is {found}, the published file has {checksum}")


def read_bytes(path: Path, most: int = 2**28) -> bytes:
    """A whole file, gzipped or not, of `most` bytes at most: a tenth of it is more than any published table has."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
        with (gzip.open if packed else open)(path, "rb") as stream:
            data: bytes = stream.read(most + 1)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put the file there") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is cut short or damaged") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > most:
        raise DataError(f"{path} holds more than {most:,} bytes: it is no published file, refused")
    return data
