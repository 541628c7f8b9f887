"""A disk that fails on request, between offbeat and the real one: it counts file operations below a folder, and at the
n-th gives an error, stops working for good, or is where the process is killed; or the power fails, and what was not
made durable is lost.

It stands in for Python's own functions in a child process. What SQLite does inside a statement is its own affair: a
statement counts as one operation, and a commit is durable when the connection says so (synchronous = FULL).
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

from children import die

HOWS = ("kill", "error", "full", "power", "some power")
FULL = 2  # PRAGMA synchronous
REAL_CONNECT = sqlite3.connect


@dataclass
class Disk:
    folder: Path  # of the run; its parent is where its own name stands
    at: int = 0  # 0: never
    how: str = "kill"
    count: int = 0
    loose: int = 0  # commits that are not durable
    # what is not durable, by what has to be synced for it
    undo: list[tuple[Path, Callable[[], object]]] = field(default_factory=list)
    busy: bool = False  # with its own work, which does not count

    # ------------------------------------------------------------ what happens at the n-th operation

    def operation(self, path: Any, torn: Callable[[], None] | None = None, writes: bool = True) -> None:
        """One is about to happen. `torn` does half of it; a full disk can still be read, and files removed."""
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
            self._lose(random.Random(self.at) if self.how == "some power" else None)
        die()

    def concerns(self, path: Any) -> bool:
        if self.busy or not isinstance(path, (str, Path)):
            return False
        whole = os.path.abspath(path)
        return whole == str(self.folder) or whole.startswith(f"{self.folder}{os.sep}")

    def _lose(self, chance: random.Random | None) -> None:
        """Back to front, undo what was not made durable; or some of it, since a disk may have written any part."""
        self.busy = True
        for _, undo in reversed(self.undo):
            if chance is None or chance.random() < 0.5:
                undo()

    def synced(self, path: Path) -> None:
        self.undo = [(what, undo) for what, undo in self.undo if what != path]

    # ------------------------------------------------------------ what is put in place of Python's own

    def install(self) -> None:
        self._files()
        self._names()
        sqlite3.connect = self._connect  # type: ignore[assignment]

    def _files(self) -> None:
        real_open, real_fd_open, real_sync, real_write, real_truncate = (
            io.open,
            os.open,
            os.fsync,
            os.write,
            os.truncate,
        )

        def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            # with an opener it is os.open that is asked
            if more.get("opener") is None and not isinstance(file, int):
                self._about_to_open(file, any(letter in mode for letter in "wxa"), "w" in mode)
            made = real_open(file, mode, *rest, **more)
            return File(made, self, real_write) if "b" in mode and any(letter in mode for letter in "wxa+") else made

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
                self._keep(path, path)
            return real_write(handle, data)

        def truncate(what: Any, size: int) -> None:
            path = _path_of(what) if isinstance(what, int) else Path(os.path.abspath(what))
            self.operation(path)
            if self.concerns(path):
                self._keep(path, path)
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
                self._keep(where, where)
        else:
            self.undo.append((where.parent, lambda: where.unlink(missing_ok=True)))
            self.undo.append((where, lambda: where.write_bytes(b"") if where.exists() else None))

    def _keep(self, path: Path, durable_with: Path) -> None:
        """It is about to be changed, replaced or removed: that may turn out not to have happened."""
        self.busy = True
        data = path.read_bytes() if path.is_file() else None
        self.busy = False
        if data is not None:
            self.undo.append((durable_with, lambda: path.write_bytes(data) if path.parent.is_dir() else None))

    def _names(self) -> None:
        replace, unlink, mkdir, rmdir = os.replace, os.unlink, os.mkdir, os.rmdir

        def moved(source: Any, target: Any, **more: Any) -> None:
            self.operation(target)
            old, new = Path(os.path.abspath(source)), Path(os.path.abspath(target))
            if self.concerns(target):
                # without a sync of the folder either name may be there; without one of the file before, the new one is
                # empty
                unsynced = any(what == old for what, _ in self.undo)
                self._keep(new, new.parent) if new.exists() else self.undo.append(
                    (new.parent, lambda: new.unlink(missing_ok=True))
                )
                if unsynced:
                    self.undo.append((new, lambda: new.write_bytes(b"") if new.exists() else None))
            replace(source, target, **more)

        def removed(path: Any, **more: Any) -> None:
            self.operation(path, writes=False)
            if self.concerns(path):
                self._keep(Path(os.path.abspath(path)), Path(os.path.abspath(path)).parent)
            unlink(path, **more)

        def made(path: Any, *rest: Any, **more: Any) -> None:
            self.operation(path)
            mkdir(path, *rest, **more)
            if self.concerns(path):
                where = Path(os.path.abspath(path))
                # whoever syncs what is in it has it too, on every file system in use
                self.undo.append((where, lambda: shutil.rmtree(where, ignore_errors=True)))

        def unmade(path: Any, **more: Any) -> None:
            self.operation(path, writes=False)
            rmdir(path, **more)

        os.replace = os.rename = moved  # type: ignore[assignment]
        os.unlink = os.remove = removed  # type: ignore[assignment]
        os.mkdir, os.rmdir = made, unmade  # type: ignore[assignment]

    def _connect(self, path: Any, *rest: Any, **more: Any) -> sqlite3.Connection:
        disk = self
        text = str(path).removeprefix("file://").partition("?")[0] if more.get("uri") else path

        class Connection(sqlite3.Connection):
            """Of the trace, statement by statement."""

            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                return self._counted(super().execute, statement, *values)

            def executemany(self, statement: str, *values: Any) -> sqlite3.Cursor:
                return self._counted(super().executemany, statement, *values)

            def executescript(self, statement: str) -> sqlite3.Cursor:
                return self._counted(super().executescript, statement)

            def _counted(self, do: Callable[..., sqlite3.Cursor], statement: str, *values: Any) -> sqlite3.Cursor:
                writes = statement.split()[0] not in ("SELECT", "PRAGMA", "ROLLBACK")
                disk._statement(text, writes)
                done = do(statement, *values)
                if writes and disk.concerns(text) and not self.in_transaction:
                    disk._trace_settled(Path(os.path.abspath(text)), self)
                return done

        self._statement(text, writes=False)
        made: sqlite3.Connection = REAL_CONNECT(path, *rest, factory=Connection, **more)
        return made

    def _statement(self, path: Any, writes: bool) -> None:
        try:
            self.operation(path, writes=writes)
        except OSError as error:
            full = error.errno == errno.ENOSPC
            told = sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
            told.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR  # as SQLite's own have it
            raise told from None

    def _trace_settled(self, path: Path, connection: sqlite3.Connection) -> None:
        """A commit: with synchronous = FULL it is durable. Otherwise the log may still be cut to what it was."""
        log = path.with_name(f"{path.name}-wal")
        size = log.stat().st_size if log.exists() else 0
        (level,) = sqlite3.Connection.execute(connection, "PRAGMA synchronous").fetchone()
        if level >= FULL:
            self.synced(log)
        else:
            self.loose += 1
        self.undo.append((log, lambda: os.truncate(log, min(size, log.stat().st_size)) if log.exists() else None))


class File:
    """A file that is being written: every write counts, and half of it is done when the process dies there."""

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

    def __exit__(self, *told: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _path_of(handle: Any) -> Path | None:
    number = handle if isinstance(handle, int) else handle.fileno()
    try:
        return Path(os.readlink(f"/proc/self/fd/{number}"))
    except OSError:
        return None
