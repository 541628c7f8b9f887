"""Where data sets lie: OFFBEAT_DATA, else a folder of the user's cache."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from offbeat.core.errors import DataError


def data_root() -> Path:
    given = os.environ.get("OFFBEAT_DATA")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "offbeat"


def find_file(folder: str, names: tuple[str, ...], md5: str | None = None) -> Path:
    """The first of these files under the data root; `md5` is what the published one has."""
    root = data_root()
    for name in names:
        path = root / folder / name
        if path.is_file():
            if md5 is not None and name == names[0]:
                _verify(path, md5)
            return path
    wanted = root / folder / names[0]
    raise DataError(f"{wanted} is missing: put the file there, or set OFFBEAT_DATA to the folder that holds {folder}/{names[0]}")


def _verify(path: Path, md5: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise DataError(f"{path} is damaged: its MD5 is {found}, the published file has {md5}")
