"""Protection of run folders: creation without overwriting, one process at a time, and no symbolic links."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from offbeat.core.errors import ConfigError, RunError
from offbeat.experiment.run import checksums
from offbeat.experiment.spec import user_code

COMPARISON = "compare.json"  # marks the folder of a comparison
SCRIPTED = "simulation.json"  # in place of experiment.yaml if a script defined the run
# written before experiment.yaml or simulation.json when a run is created
CREATION_ENTRIES = (
    "environment.json", "command.txt", user_code.COPIES, "world.json", "start.safetensors", "data.safetensors",
)  # fmt: skip
LIVE_ENTRIES = ("sites.json", "record", "run-id")  # of a live run
RUN_ENTRIES = (
    "experiment.yaml", SCRIPTED, COMPARISON, "run.sqlite", "model.safetensors", "checkpoint", checksums.CHECKSUM_FILE,
    *LIVE_ENTRIES, *CREATION_ENTRIES,
)  # fmt: skip
CREATION_MARK = b"this folder is being made\n"  # content of the lock while the folder is created
LOCK_ATTEMPTS = 5  # retries to take a lock
_open_locks: set[int] = set()  # file descriptors of locks of this process
TEMPORARY_NAME = re.compile(r"(.+?)(\.[0-9a-f]{8})?\.tmp")  # name of a file that was being written


def refuse_occupied(folder: Path) -> None:
    """Reject a folder that holds a run or a comparison, unless its creation was interrupted."""
    refuse_links(folder)
    lock = folder / "lock"
    if lock.exists() and not creation_interrupted(folder) and (not lock.is_file() or lock.stat().st_size):
        raise ConfigError(f"{folder} has a file named lock that is not from offbeat: choose another --out")
    entry = next((name for name in RUN_ENTRIES if (folder / name).exists()), None)
    if entry == "experiment.yaml":
        resume = f"offbeat run --resume {folder}"
        raise ConfigError(f"{folder} already holds a run: resume it with '{resume}', or choose another --out")
    if entry == SCRIPTED:
        raise ConfigError(f"{folder} already holds a simulation: choose another folder")
    if entry is not None and not (entry in CREATION_ENTRIES and creation_interrupted(folder)):
        raise ConfigError(f"{folder} already holds {entry}: choose another --out")


def creation_interrupted(folder: Path) -> bool:
    """Tell whether the process that created the run folder ended before the folder was complete."""
    lock = folder / "lock"
    mark = lock.read_bytes() if lock.is_file() else b""
    return mark != b"" and CREATION_MARK.startswith(mark)  # or a part of it


def remove_partial_folder(folder: Path, new: bool) -> None:
    """Remove the files that an interrupted creation wrote."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder / user_code.COPIES, ignore_errors=True)
        for name in (*CREATION_ENTRIES, "lock"):
            (folder / name).unlink(missing_ok=True)
        if new:
            folder.rmdir()


def refuse_links(folder: Path) -> None:
    """Reject symbolic links, which could make us read or write files outside of the run folder."""
    named = (*RUN_ENTRIES, "lock", "run.sqlite-wal", "run.sqlite-shm", "run.sqlite-journal")
    below = (*(folder / "checkpoint").glob("*"), *(folder / user_code.COPIES).rglob("*"))
    for path in (*(folder / name for name in named), *below):
        if path.is_symlink():
            raise RunError(f"{path} is a symbolic link, which run folders must not contain: replace it by the file")


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files of interrupted writes."""
    for path in folder.glob("*.tmp"):
        name = TEMPORARY_NAME.fullmatch(path.name)
        if name and name[1] in RUN_ENTRIES:
            path.unlink(missing_ok=True)
    for path in (*(folder / "checkpoint").glob("*.tmp"), *(folder / user_code.COPIES).rglob("*.tmp")):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[int]:
    """Hold the lock of a run folder, so that only one process executes the run.

    The operating system releases the lock when the process ends. Symbolic links are not followed.
    """
    path = folder / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RunError(f"cannot open {path}: {error.strerror or error}") from None
    _open_locks.add(lock)
    try:
        _acquire(lock)
        yield lock
    except BlockingIOError:
        raise RunError(f"{folder} is in use by another process") from None
    finally:
        _open_locks.discard(lock)
        os.close(lock)


def _acquire(lock: int) -> None:
    """Take the lock; retry briefly, because `is_locked` of another process holds it for a moment."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Tell whether a process executes or creates the run, without writing or blocking anything."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that concurrent checks do not see each other
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def _close_inherited_locks() -> None:
    """Close locks inherited by a fork; otherwise they would outlive a killed parent."""
    while _open_locks:
        os.close(_open_locks.pop())


os.register_at_fork(after_in_child=_close_inherited_locks)
