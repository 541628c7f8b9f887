"""A disk that fails on request: it replaces Python's file functions in a child process.

It counts file operations below a folder. At the n-th operation it raises an error, is full from then on, kills the
process, or simulates a power failure, which loses everything not synced. One SQL statement counts as one operation; a
commit is durable if the connection uses synchronous = FULL.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from child_processes import kill_self

DISK_FAULTS = ("kill", "error", "full", "power", "some power")
FULL = 2  # PRAGMA synchronous
REAL_CONNECT = sqlite3.connect


@dataclass
class Disk:
    """Counts and breaks file operations below a folder."""

    folder: Path  # of the run
    at: int = 0  # number of the failing operation; 0: none
    how: str = "kill"  # one of DISK_FAULTS
    count: int = 0  # operations so far
    unsynced_commits: int = 0
    # changes that are not durable: the path whose sync makes them durable, and a function that undoes them
    undo: list[tuple[Path, Callable[[], object]]] = field(default_factory=list)
    busy: bool = False  # whether the disk itself works on files, which does not count

    # ------------------------------------------------------------ the failing operation

    def operation(self, path: Any, torn: Callable[[], None] | None = None, writes: bool = True) -> None:
        """Count an operation before it happens, and fail if it is the chosen one.

        `torn` does half of the operation. On a full disk, reading and deleting still work.
        """
        if not self.concerns(path):
            return
        self.count += 1
        due = self.count == self.at or (self.how == "full" and 0 < self.at < self.count)
        if not due or (self.how == "full" and not writes):
            return
        if self.how in ("error", "full"):
            number = errno.EIO if self.how == "error" and self.at % 2 else errno.ENOSPC
            raise OSError(number, os.strerror(number), str(path))
        if torn is not None:
            torn()
        if self.how != "kill":
            self._undo_unsynced(random.Random(self.at) if self.how == "some power" else None)
        kill_self()

    def concerns(self, path: Any) -> bool:
        if self.busy or not isinstance(path, (str, Path)):
            return False
        whole = os.path.abspath(path)
        return whole == str(self.folder) or whole.startswith(f"{self.folder}{os.sep}")

    def _undo_unsynced(self, chance: random.Random | None) -> None:
        """Undo the changes that are not durable, last first, or a random part of them: a disk may write any part."""
        self.busy = True
        for _, undo in reversed(self.undo):
            if chance is None or chance.random() < 0.5:
                undo()

    def synced(self, path: Path) -> None:
        self.undo = [(what, undo) for what, undo in self.undo if what != path]

    # ------------------------------------------------------------ replacements of Python's functions

    def install(self) -> None:
        self._replace_file_functions()
        self._replace_folder_functions()
        sqlite3.connect = self._connect  # type: ignore[assignment]

    def _replace_file_functions(self) -> None:
        real_open, real_fd_open, real_sync, real_write, real_truncate = (
            io.open,
            os.open,
            os.fsync,
            os.write,
            os.truncate,
        )

        def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            # with an opener, os.open is called and counted
            if more.get("opener") is None and not isinstance(file, int):
                self._about_to_open(file, any(letter in mode for letter in "wxa"), "w" in mode)
            stream = real_open(file, mode, *rest, **more)
            writes_bytes = "b" in mode and any(letter in mode for letter in "wxa+")
            return File(stream, self, real_write) if writes_bytes else stream

        def fd_open(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            self._about_to_open(path, bool(flags & os.O_CREAT), bool(flags & os.O_TRUNC))
            return real_fd_open(path, flags, *rest, **more)

        def sync(handle: Any) -> None:
            path = _path_of(handle)
            self.operation(path)
            real_sync(handle)
            if path is not None:
                self.synced(path)

        def fd_write(handle: int, data: Any) -> int:
            path = _path_of(handle)
            self.operation(path, lambda: real_write(handle, bytes(data)[: len(data) // 2]))
            if self.concerns(path):
                self._store_content(path, path)
            return real_write(handle, data)

        def truncate(what: Any, size: int) -> None:
            path = _path_of(what) if isinstance(what, int) else Path(os.path.abspath(what))
            self.operation(path)
            if self.concerns(path):
                self._store_content(path, path)
            real_truncate(what, size)

        builtins.open = io.open = opened
        os.open, os.fsync, os.write, os.truncate = fd_open, sync, fd_write, truncate  # type: ignore[assignment]

    def _about_to_open(self, path: Any, creates: bool, empties: bool) -> None:
        self.operation(path, writes=creates)
        if not creates or not self.concerns(path):
            return
        where = Path(os.path.abspath(path))
        if where.exists():
            if empties:
                self._store_content(where, where)
        else:
            self.undo.append((where.parent, lambda: where.unlink(missing_ok=True)))
            self.undo.append((where, lambda: where.write_bytes(b"") if where.exists() else None))

    def _store_content(self, path: Path, durable_with: Path) -> None:
        """Store the content of a file before it is changed, replaced or deleted, to undo the change."""
        self.busy = True
        data = path.read_bytes() if path.is_file() else None
        self.busy = False
        if data is not None:
            self.undo.append((durable_with, lambda: path.write_bytes(data) if path.parent.is_dir() else None))

    def _replace_folder_functions(self) -> None:
        replace, unlink, mkdir, rmdir = os.replace, os.unlink, os.mkdir, os.rmdir

        def replace_file(source: Any, target: Any, **more: Any) -> None:
            self.operation(target)
            old, new = Path(os.path.abspath(source)), Path(os.path.abspath(target))
            if self.concerns(target):
                # without a sync of the folder, either name may exist; without an earlier sync of the file, the new
                # file is empty
                unsynced = any(what == old for what, _ in self.undo)
                self._store_content(new, new.parent) if new.exists() else self.undo.append(
                    (new.parent, lambda: new.unlink(missing_ok=True))
                )
                if unsynced:
                    self.undo.append((new, lambda: new.write_bytes(b"") if new.exists() else None))
            replace(source, target, **more)

        def delete_file(path: Any, **more: Any) -> None:
            self.operation(path, writes=False)
            if self.concerns(path):
                self._store_content(Path(os.path.abspath(path)), Path(os.path.abspath(path)).parent)
            unlink(path, **more)

        def make_folder(path: Any, *rest: Any, **more: Any) -> None:
            self.operation(path)
            mkdir(path, *rest, **more)
            if self.concerns(path):
                where = Path(os.path.abspath(path))
                # on common file systems, syncing a file in the folder makes the folder durable
                self.undo.append((where, lambda: shutil.rmtree(where, ignore_errors=True)))

        def delete_folder(path: Any, **more: Any) -> None:
            self.operation(path, writes=False)
            rmdir(path, **more)

        os.replace = os.rename = replace_file  # type: ignore[assignment]
        os.unlink = os.remove = delete_file  # type: ignore[assignment]
        os.mkdir, os.rmdir = make_folder, delete_folder  # type: ignore[assignment]

    def _connect(self, path: Any, *rest: Any, **more: Any) -> sqlite3.Connection:
        disk = self
        text = str(path).removeprefix("file://").partition("?")[0] if more.get("uri") else path

        class Connection(sqlite3.Connection):
            """A connection to the trace that counts every statement."""

            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                return self._counted(super().execute, statement, *values)

            def executemany(self, statement: str, *values: Any) -> sqlite3.Cursor:
                return self._counted(super().executemany, statement, *values)

            def executescript(self, statement: str) -> sqlite3.Cursor:
                return self._counted(super().executescript, statement)

            def _counted(self, do: Callable[..., sqlite3.Cursor], statement: str, *values: Any) -> sqlite3.Cursor:
                writes = statement.split()[0] not in ("SELECT", "PRAGMA", "ROLLBACK")
                disk._statement(text, writes)
                cursor = do(statement, *values)
                if writes and disk.concerns(text) and not self.in_transaction:
                    disk._record_commit(Path(os.path.abspath(text)), self)
                return cursor

        self._statement(text, writes=False)
        connection: sqlite3.Connection = REAL_CONNECT(path, *rest, factory=Connection, **more)
        return connection

    def _statement(self, path: Any, writes: bool) -> None:
        try:
            self.operation(path, writes=writes)
        except OSError as os_error:
            full = os_error.errno == errno.ENOSPC
            error = sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR  # as set by SQLite
            raise error from None

    def _record_commit(self, path: Path, connection: sqlite3.Connection) -> None:
        """Record a commit: durable with synchronous = FULL, otherwise a power failure may truncate the log."""
        log = path.with_name(f"{path.name}-wal")
        size = log.stat().st_size if log.exists() else 0
        (level,) = sqlite3.Connection.execute(connection, "PRAGMA synchronous").fetchone()
        if level >= FULL:
            self.synced(log)
        else:
            self.unsynced_commits += 1
        self.undo.append((log, lambda: os.truncate(log, min(size, log.stat().st_size)) if log.exists() else None))


class File:
    """A file open for writing: every write counts, and half of it is done if the process dies there."""

    def __init__(self, file: Any, disk: Disk, write: Callable[[int, Any], int]) -> None:
        self._file, self._disk, self._write = file, disk, write

    def write(self, data: Any) -> int:
        path = _path_of(self._file.fileno())

        def torn() -> None:
            self._file.flush()
            self._write(self._file.fileno(), bytes(data)[: len(data) // 2])

        self._disk.operation(path, torn)
        if path is not None and self._disk.concerns(path):
            self._disk.undo.append((path, lambda: path.write_bytes(b"") if path.exists() else None))
        return int(self._file.write(data))

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _path_of(handle: Any) -> Path | None:
    number = handle if isinstance(handle, int) else handle.fileno()
    try:
        return Path(os.readlink(f"/proc/self/fd/{number}"))
    except OSError:
        return None
