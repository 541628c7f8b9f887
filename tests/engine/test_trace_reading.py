"""A trace is read wherever it lies, also where nothing can be written beside it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from offbeat.engine import trace as module
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import open_read_only


class Unwritable:
    """A connection that cannot make the files it needs beside the trace."""

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
def unwritable(monkeypatch):
    """Makes every connection that would share the file fail with a code; returns what was opened in that way."""

    def make(code):
        opened, connect = [], sqlite3.connect

        def connected(where, **how):
            if "mode=ro" in where:
                opened.append(Unwritable(code))
                return opened[-1]
            return connect(where, **how)

        monkeypatch.setattr(module.sqlite3, "connect", connected)
        return opened

    return make


CODES = [sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR | 18 << 8, sqlite3.SQLITE_READONLY]


@pytest.mark.parametrize("code", CODES)
def test_a_full_or_read_only_disk_hinders_no_reader(path, unwritable, code):
    opened = unwritable(code)
    with closing(open_read_only(path)) as db:
        assert db.execute("SELECT now, kind, version FROM trace").fetchall() == [(1.0, "arrive", 3)]
    assert [one.closed for one in opened] == [True]


def test_rows_that_lie_in_the_journal_only_are_not_passed_over(path, unwritable):
    path.with_name("run.sqlite-wal").write_bytes(b"rows")
    opened = unwritable(sqlite3.SQLITE_CANTOPEN)
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        open_read_only(path)
    assert opened[0].closed


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CORRUPT])
def test_whatever_else_is_wrong_is_told(path, unwritable, code):
    """A writer that is there is waited for; what is damaged is not read in another way."""
    unwritable(code)
    with pytest.raises(sqlite3.OperationalError):
        open_read_only(path)
