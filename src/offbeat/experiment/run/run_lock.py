"""A run folder's guard: whose it is, who may write to it now, and that nothing in it leads out of it."""

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

COMPARISON = "compare.json"  # what makes a folder one of several runs, not a run
SCRIPTED = "simulation.json"  # in place of experiment.yaml, of a run whose model and data a script has
# before these
CREATION_ENTRIES = (
    "environment.json",
    "command.txt",
    user_code.COPIES,
    "world.json",
    "start.safetensors",
    "data.safetensors",
)
LIVE_ENTRIES = ("sites.json", "record", "run-id")  # of a run that was served
RUN_ENTRIES = (
    "experiment.yaml",
    SCRIPTED,
    COMPARISON,
    "run.sqlite",
    "model.safetensors",
    "checkpoint",
    checksums.CHECKSUM_FILE,
    *LIVE_ENTRIES,
    *CREATION_ENTRIES,
)
CREATION_MARK = b"this folder is being made\n"  # in the lock until it is
LOCK_ATTEMPTS = 5  # times that a lock is tried again
_open_locks: set[int] = set()  # that this process holds
TEMPORARY_NAME = re.compile(r"(.+?)(\.[0-9a-f]{8})?\.tmp")  # of a file that was being written


def refuse_occupied(folder: Path) -> None:
    """Nothing that is there already is touched, but what a process left that was killed while it made the folder."""
    refuse_links(folder)
    lock = folder / "lock"
    if lock.exists() and not creation_interrupted(folder) and (not lock.is_file() or lock.stat().st_size):
        raise ConfigError(f"{folder} already holds a lock that is not offbeat's: choose another --out")
    held = next((name for name in RUN_ENTRIES if (folder / name).exists()), None)
    if held == "experiment.yaml":
        raise ConfigError(
            f"{folder} already holds a run: resume it with 'offbeat run --resume {folder}', or choose another --out"
        )
    if held == SCRIPTED:
        raise ConfigError(f"{folder} already holds a simulation: choose another folder")
    if held is not None and not (held in CREATION_ENTRIES and creation_interrupted(folder)):
        raise ConfigError(f"{folder} already holds {held}: choose another --out")


def creation_interrupted(folder: Path) -> bool:
    lock = folder / "lock"
    mark = lock.read_bytes() if lock.is_file() else b""
    return mark != b"" and CREATION_MARK.startswith(mark)  # half of it, where the mark itself was being written


def remove_partial_folder(folder: Path, new: bool) -> None:
    """Leave nothing half made."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder / user_code.COPIES, ignore_errors=True)
        for name in (*CREATION_ENTRIES, "lock"):
            (folder / name).unlink(missing_ok=True)
        if new:
            folder.rmdir()


def refuse_links(folder: Path) -> None:
    """Whoever gives us a folder must not make us write, or read as a run's, what lies elsewhere."""
    named = (*RUN_ENTRIES, "lock", "run.sqlite-wal", "run.sqlite-shm", "run.sqlite-journal")
    below = (*(folder / "checkpoint").glob("*"), *(folder / user_code.COPIES).rglob("*"))
    for path in (*(folder / name for name in named), *below):
        if path.is_symlink():
            raise RunError(f"{path} is a link: a run folder holds its files itself; put the file in its place")


def remove_temporary_files(folder: Path) -> None:
    """Remove what a write that was killed has left."""
    for path in folder.glob("*.tmp"):
        name = TEMPORARY_NAME.fullmatch(path.name)
        if name and name[1] in RUN_ENTRIES:
            path.unlink(missing_ok=True)
    for path in (*(folder / "checkpoint").glob("*.tmp"), *(folder / user_code.COPIES).rglob("*.tmp")):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[int]:
    """Two processes on one run would tear it apart; the lock goes with the process, however it ends. No link is
    followed.
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
        raise RunError(f"{folder} is being run by another process") from None
    finally:
        _open_locks.discard(lock)
        os.close(lock)


def _acquire(lock: int) -> None:
    """Whoever looks whether it is held has it for a moment: that is no reason to give up."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Is a process computing it, or making it? Only looks: nothing is written, and whoever begins is not kept out."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who look do not see each other
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def _close_inherited_locks() -> None:
    """A fork shares its parent's locks: it would hold them a moment longer than a parent that is killed."""
    while _open_locks:
        os.close(_open_locks.pop())


os.register_at_fork(after_in_child=_close_inherited_locks)
