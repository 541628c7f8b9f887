"""A reader of the trace of a running run is at most two seconds of host time behind it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_world import Eager, Surroundings, add_one, make_engine

from engine import messages
from offbeat.core.errors import RunError
from offbeat.core.jobs import Job, Result
from offbeat.engine.trace import MAX_READER_LAG, ROWS_BETWEEN_CLOCK_CHECKS, Trace
from offbeat.engine.trace_file import TraceDigest, open_read_only
from offbeat.engine.until import Until


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trace(tmp_path: Path, clock: Clock) -> Trace:
    return Trace(tmp_path / "run.sqlite", clock)


def seen(trace: Trace, table: str = "trace") -> int:
    """Return the number of rows that another process can read."""
    assert trace.path is not None
    if not trace.path.is_file():
        return 0
    with closing(open_read_only(trace.path)) as db:
        return db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]


def test_rows_are_written_when_the_last_write_is_too_old(trace, clock):
    for _ in range(4 * ROWS_BETWEEN_CLOCK_CHECKS):
        trace.add(1.0, "timer", 0)
    trace.flush_if_behind()
    assert seen(trace) == 0
    clock.now = MAX_READER_LAG
    trace.flush_if_behind()
    assert seen(trace) == 4 * ROWS_BETWEEN_CLOCK_CHECKS
    trace.commit(1.0, 1)
    clock.now = 1.5 * MAX_READER_LAG
    trace.flush_if_behind()
    assert seen(trace, "commits") == 0  # half of the time has passed
    clock.now = 2 * MAX_READER_LAG
    trace.flush_if_behind()
    assert seen(trace, "commits") == 1


def test_in_a_run_without_answers_the_rows_check_the_clock(trace, clock):
    """Tickets expire and timers fire: the engine waits for no result, so it never calls flush_if_behind."""
    for _ in range(2 * ROWS_BETWEEN_CLOCK_CHECKS):
        clock.now += MAX_READER_LAG / ROWS_BETWEEN_CLOCK_CHECKS
        trace.add(clock.now, "lost", 0)
    assert seen(trace) >= ROWS_BETWEEN_CLOCK_CHECKS


def test_all_rows_are_written_before_a_wait_that_will_be_too_long(trace, clock):
    """Jobs of 1.5 s: rows that are half a second old when the wait begins would be 2 s old at the next check."""
    trace.flush_if_behind()
    clock.now = 1.5
    trace.add(1.0, "arrive", 0)
    trace.flush_if_behind()  # 1.5 s since the last look, so the next one comes at 3 s: later than LAG
    assert seen(trace) == 1


def test_a_check_without_rows_creates_no_file(trace, clock):
    clock.now = 100.0
    trace.flush_if_behind()
    assert not trace.path.exists()


def test_a_full_block_does_not_wait_for_the_disk_and_the_next_write_waits_for_both(trace, monkeypatch):
    """Rows 0 and 1 are a block, handed over before row 2 is added."""
    monkeypatch.setattr("offbeat.engine.trace.BLOCK_ROWS", 2)
    trace._next_check = trace._next_clock_check()
    said: list[str] = []
    trace.db.set_trace_callback(said.append)
    for _ in range(2):
        trace.add(1.0, "timer", 0)
    assert (said, seen(trace)) == ([], 0)
    trace.add(1.0, "timer", 0)
    assert seen(trace) == 2
    assert (said[0], said[-1]) == ("PRAGMA synchronous=NORMAL", "COMMIT")
    said.clear()
    trace.flush()
    assert seen(trace) == 3
    assert (said[0], said[-1]) == ("PRAGMA synchronous=FULL", "COMMIT")


@pytest.mark.parametrize(
    "durably",
    [Trace.flush, lambda trace: trace.set_facts({}), lambda trace: trace.truncate(1), Trace.digest, Trace.close],
)
def test_earlier_rows_become_durable_even_if_no_row_is_left_to_write(trace, durably):
    """SQLite waits for the disk in a commit that changes a page; then it does for all of the log."""
    trace.add(1.0, "timer", 0)
    trace.flush(durable=False)
    said: list[str] = []
    trace.db.set_trace_callback(said.append)
    for _ in range(2):
        assert said == []
        trace.flush(durable=False)  # no row is left
    durably(trace)
    at = said.index("COMMIT")
    expected = ["PRAGMA synchronous=FULL", "BEGIN", "PRAGMA user_version=0", "COMMIT"]
    assert [statement for statement in said[: at + 1] if not statement.startswith("DELETE")] == expected
    if durably is Trace.flush:
        trace.flush()
        assert said[at + 1 :] == []  # once is enough


def test_facts_are_one_transaction(trace):
    said: list[str] = []
    trace.db.set_trace_callback(said.append)
    trace.set_facts({"a": 1, "b": 2})
    assert said[0] == "PRAGMA synchronous=FULL"
    assert (said.count("BEGIN"), said.count("COMMIT")) == (1, 1)
    assert dict(trace.db.execute("SELECT * FROM facts")) == {"a": "1", "b": "2"}


def test_a_disk_that_is_full_for_a_while_loses_no_row_and_doubles_none(trace):
    """SQLite limits the number of pages of a file, and takes back what it had begun to write."""
    trace.add(1.0, "timer", 0)
    trace.flush()
    (pages,) = trace.db.execute("PRAGMA page_count").fetchone()
    trace.db.execute(f"PRAGMA max_page_count={pages}")
    for i in range(300):
        trace.add(1.0, "refuse", 0, detail=f"{i}" * 50)
    with pytest.raises(RunError, match=messages.TRACE_FULL):
        trace.flush()
    assert not trace.db.in_transaction
    assert seen(trace) == 1
    assert trace.digest_so_far.as_dict()["trace"][0] == 1
    trace.db.execute(f"PRAGMA max_page_count={1000 * pages}")
    trace.flush()
    assert seen(trace) == 301
    assert trace.digest_so_far.difference(TraceDigest.from_database(trace.db).as_dict()) is None


def test_writing_to_a_full_disk_is_repeated_sometimes_not_at_every_row(trace, monkeypatch, caplog):
    monkeypatch.setattr("offbeat.engine.trace.BLOCK_ROWS", 10)
    trace._next_check, trace.retry_failed_writes, tried = trace._next_clock_check(), True, []

    def full(durable: bool = True) -> None:
        tried.append(trace.seq)
        raise RunError("no room")

    monkeypatch.setattr(trace, "flush", full)
    for _ in range(10 + 3 * ROWS_BETWEEN_CLOCK_CHECKS):
        trace.add(1.0, "timer", 0)
    assert tried == [10, 10 + ROWS_BETWEEN_CLOCK_CHECKS, 10 + 2 * ROWS_BETWEEN_CLOCK_CHECKS]
    assert caplog.text.count("no room; retrying") == 1


def test_a_trace_in_memory_is_never_written(clock):
    trace = Trace(None, clock)
    trace.add(1.0, "timer", 0)
    clock.now = 100.0
    trace.flush_if_behind()
    assert "db" not in trace.__dict__


def test_a_reader_of_a_slow_run_is_never_further_behind(trace, clock):
    written: list[float] = []  # when each row was, by seq
    behind: list[float] = []

    def slow(job: Job) -> Result:
        """A job takes a second of host time; then somebody reads."""
        written.extend([clock.now] * (trace.seq - len(written)))
        clock.now += 1.0
        missing = seen(trace) + seen(trace, "commits")
        behind.append(clock.now - written[missing] if missing < len(written) else 0.0)
        return add_one(job)

    make_engine(Eager(), Surroundings({0: 3.0, 1: 5.0}), until=Until(updates=30), train=slow, trace=trace).run()
    assert len(behind) == 30
    assert 0 < max(behind) <= MAX_READER_LAG
