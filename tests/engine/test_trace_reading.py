"""A trace can be read wherever it is, also if no file can be written beside it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from engine import messages
from offbeat.engine import trace as module
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import open_read_only


class Unwritable:
    """A connection that cannot create the files it needs beside the trace."""

    def __init__(self, code):
        self.code, self.closed = code, False

    def execute(self, sql):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self.code
        raise error

    def close(self):
        self.closed = True


@pytest.fixture
def path(tmp_path):
    trace = Trace(tmp_path / "run.sqlite")
    trace.add(1.0, "arrive", 3)
    trace.close()
    return trace.path


@pytest.fixture
def fail_to_share(monkeypatch):
    """Let every connection that would share the file fail with a code; return these connections."""

    def patch(code):
        failed, connect = [], sqlite3.connect

        def connect_or_fail(where, **how):
            if "mode=ro" not in where:
                return connect(where, **how)
            failed.append(Unwritable(code))
            return failed[-1]

        monkeypatch.setattr(module.sqlite3, "connect", connect_or_fail)
        return failed

    return patch


CODES = [sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR | 18 << 8, sqlite3.SQLITE_READONLY]


@pytest.mark.parametrize("code", CODES)
def test_a_full_or_read_only_disk_does_not_prevent_reading(path, fail_to_share, code):
    failed = fail_to_share(code)
    with closing(open_read_only(path)) as db:
        assert db.execute("SELECT now, kind, version FROM trace").fetchall() == [(1.0, "arrive", 3)]
    assert [connection.closed for connection in failed] == [True]


def test_rows_that_are_only_in_the_log_are_not_ignored(path, fail_to_share):
    path.with_name("run.sqlite-wal").write_bytes(b"rows")
    failed = fail_to_share(sqlite3.SQLITE_CANTOPEN)
    with pytest.raises(sqlite3.OperationalError, match=messages.DISK_ERROR):
        open_read_only(path)
    assert failed[0].closed


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CORRUPT])
def test_other_errors_are_raised(path, fail_to_share, code):
    """An active writer and a damaged file are no reason to read it in another way."""
    fail_to_share(code)
    with pytest.raises(sqlite3.OperationalError):
        open_read_only(path)
