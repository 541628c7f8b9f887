"""The digest of a trace: it is updated while rows are written and equals that of the file, wherever blocks end."""

from __future__ import annotations

from contextlib import closing
from enum import IntEnum, StrEnum
from math import inf, nan

import pytest

from engine import messages
from offbeat.core.errors import CheckpointError, RunError
from offbeat.engine import trace as traces
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import TABLES, open_read_only, verified_digest


class Word(StrEnum):
    SHORT = "short"


class Number(IntEnum):
    SEVEN = 7


def fill(trace: Trace, flush_every: int = 10**9) -> Trace:
    """Write rows of every table, with values that SQLite returns in another form: whole and negative zero times, nan,
    odd strings.
    """
    for i in range(30):
        trace.add(i, "dispatch", i, i % 3, i, size=40)  # a whole number as the time
        trace.add(i + 0.5, "arrive", i, i % 3, i, i - 1, 1, 10, 2**40, "a \x00 b ☃" if i == 3 else None)
        trace.commit(-0.0 if i == 0 else i, i)
        trace.note(i, None if i % 2 else i, {"alpha": nan if i == 4 else 1 / 3, "sign": -0.0, "big": inf, "whole": 3})
        trace.metrics(float(i), i, i, {"acc": nan if i == 5 else i / 7})
        trace.clients(i, i, {0: {"acc": 0.1}, 1: {"acc": nan}})
        if i % flush_every == 0:
            trace.flush()
    trace.add(30, Word.SHORT, Number.SEVEN)
    trace.flush()
    return trace


@pytest.fixture
def trace(tmp_path) -> Trace:
    return fill(Trace(tmp_path / "run.sqlite"))


def digest(trace: Trace) -> dict:
    return trace.digest_so_far.as_dict()


def test_it_equals_the_digest_of_the_file(trace):
    with closing(open_read_only(trace.path)) as db:
        assert verified_digest(db).as_dict() == digest(trace)
    counts = {table: count for table, (count, _) in digest(trace).items()}
    assert counts == {"trace": 61, "commits": 30, "notes": 120, "metrics": 30, "clients": 60}


@pytest.mark.parametrize("every", [1, 2, 7])
def test_the_ends_of_blocks_make_no_difference(every, monkeypatch):
    whole = fill(Trace())
    monkeypatch.setattr(traces, "BLOCK_ROWS", 5)
    blocks = fill(Trace(), every)
    assert digest(blocks) == digest(whole)
    assert blocks.digest() == whole.digest()


def test_it_is_the_same_after_rows_are_cut_and_written_again(trace):
    before, seq = digest(trace), trace.seq
    trace.add(31.0, "arrive", 9)
    trace.commit(31.0, 10)
    trace.flush()
    assert digest(trace) != before
    trace.truncate(seq)
    assert digest(trace) == before
    trace.close()
    again, uninterrupted = Trace(trace.path), fill(Trace())
    again.truncate(seq, again.verify(seq, before))
    for each in (again, uninterrupted):
        each.add(31.0, "arrive", 9)
        each.flush()
    assert digest(again) == digest(uninterrupted)


@pytest.mark.parametrize("table", TABLES)
def test_a_missing_row_in_any_table_is_detected(trace, table):
    stored, seq = digest(trace), trace.seq
    trace.db.execute(f"DELETE FROM {table} WHERE rowid = (SELECT MAX(rowid) FROM {table})")
    trace.close()
    count = stored[table][0]
    with pytest.raises(CheckpointError, match=messages.MISSING_ROW.format(table, count - 1, count)):
        Trace(trace.path).verify(seq, stored)


def test_verification_changes_no_file_and_a_missing_one_is_reported(trace, tmp_path):
    stored, seq = digest(trace), trace.seq
    trace.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = Trace(trace.path)
    again.verify(seq, stored)
    again.close_after_error()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    with pytest.raises(RunError, match=messages.TRACE_MISSING):
        Trace(tmp_path / "none.sqlite").verify(seq, stored)
    assert not (tmp_path / "none.sqlite").exists()
