"""A trace knows its rows: the tally it keeps while writing is that of the file, wherever blocks end."""

from __future__ import annotations

from contextlib import closing
from enum import IntEnum, StrEnum
from math import inf, nan

import messages
import pytest

from offbeat.core.errors import CheckpointError, RunError
from offbeat.engine import trace as traces
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import TABLES, open_read_only, verified_digest


class Word(StrEnum):
    SHORT = "short"


class Number(IntEnum):
    SEVEN = 7


def fill(trace: Trace, flush_every: int = 10**9) -> None:
    """Rows of every table, with what SQLite gives back in another form: whole and negative zero times, nan, odd
    strings.
    """
    for i in range(30):
        trace.add(i, "dispatch", i, i % 3, i, size=40)  # a whole number where a time stands
        trace.add(i + 0.5, "arrive", i, i % 3, i, i - 1, 1, 10, 2**40, "a \x00 b ☃" if i == 3 else None)
        trace.commit(-0.0 if i == 0 else i, i)
        trace.note(i, None if i % 2 else i, {"alpha": nan if i == 4 else 1 / 3, "sign": -0.0, "big": inf, "whole": 3})
        trace.metrics(float(i), i, i, {"acc": nan if i == 5 else i / 7})
        trace.clients(i, i, {0: {"acc": 0.1}, 1: {"acc": nan}})
        if i % flush_every == 0:
            trace.flush()
    trace.add(30, Word.SHORT, Number.SEVEN)
    trace.flush()


def test_it_is_that_of_the_file(tmp_path):
    trace = Trace(tmp_path / "run.sqlite")
    fill(trace)
    with closing(open_read_only(trace.path)) as db:
        assert verified_digest(db).as_dict() == trace.digest_so_far.as_dict()
    counts = {table: count for table, (count, _) in trace.digest_so_far.as_dict().items()}
    assert counts == {"trace": 61, "commits": 30, "notes": 120, "metrics": 30, "clients": 60}


@pytest.mark.parametrize("every", [1, 2, 7])
def test_where_blocks_end_makes_no_difference(every, monkeypatch):
    whole, blocks = Trace(), Trace()
    fill(whole)
    monkeypatch.setattr(traces, "BLOCK_ROWS", 5)
    fill(blocks, every)
    assert blocks.digest_so_far.as_dict() == whole.digest_so_far.as_dict()
    assert blocks.digest() == whole.digest()


def test_cut_back_and_written_again_it_is_the_same(tmp_path):
    trace = Trace(tmp_path / "run.sqlite")
    fill(trace)
    before, seq = trace.digest_so_far.as_dict(), trace.seq
    trace.add(31.0, "arrive", 9)
    trace.commit(31.0, 10)
    trace.flush()
    assert trace.digest_so_far.as_dict() != before
    trace.truncate(seq)
    assert trace.digest_so_far.as_dict() == before
    trace.close()
    again = Trace(tmp_path / "run.sqlite")
    again.truncate(seq, again.verify(seq, before))
    again.add(31.0, "arrive", 9)
    trace = Trace()
    fill(trace)
    trace.add(31.0, "arrive", 9)
    trace.flush()
    again.flush()
    assert again.digest_so_far.as_dict() == trace.digest_so_far.as_dict()


@pytest.mark.parametrize("table", TABLES)
def test_a_row_less_in_any_table_is_told(tmp_path, table):
    trace = Trace(tmp_path / "run.sqlite")
    fill(trace)
    told, seq = trace.digest_so_far.as_dict(), trace.seq
    trace.db.execute(f"DELETE FROM {table} WHERE rowid = (SELECT MAX(rowid) FROM {table})")
    trace.close()
    count = told[table][0]
    with pytest.raises(CheckpointError, match=rf"its table {table} has {count - 1} rows where {count} were written"):
        Trace(tmp_path / "run.sqlite").verify(seq, told)


def test_checking_touches_nothing_and_a_file_that_is_gone_is_said(tmp_path):
    trace = Trace(tmp_path / "run.sqlite")
    fill(trace)
    told, seq = trace.digest_so_far.as_dict(), trace.seq
    trace.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    asked = Trace(tmp_path / "run.sqlite")
    asked.verify(seq, told)
    asked.close_after_error()
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name: after[name] for name in before} == before
    with pytest.raises(RunError, match=messages.TRACE_MISSING):
        Trace(tmp_path / "none.sqlite").verify(seq, told)
    assert not (tmp_path / "none.sqlite").exists()
