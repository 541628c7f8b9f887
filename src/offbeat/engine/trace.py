"""The trace: the events of a run, row by row, in SQLite, with the bytes of each transfer.

Rows are buffered, so recording one costs about a microsecond. A full block is handed to the system without waiting for
the disk; every MAX_READER_LAG seconds and before a checkpoint a durable write makes all earlier rows durable too.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError, OffbeatError, RunError
from offbeat.core.protocol import Dispatch
from offbeat.core.strategy_contract import Contract
from offbeat.engine.trace_file import (
    BLOCK_ROWS,
    TABLES,
    StoredDigest,
    TraceDigest,
    insert_rows,
    open_for_writing,
    open_read_only,
    trace_files,
    verified_digest,
)

log = logging.getLogger("offbeat")

MAX_SKIPPED_WAITS = 16  # waits without a check of the clock: bounds the delay if waits suddenly become long
MAX_READER_LAG = 2.0  # host seconds that a reader may be behind
ROWS_BETWEEN_CLOCK_CHECKS = 64  # rows of all tables, if `flush_if_behind` is not called
WALL_SECONDS = "wall_seconds"  # name of the fact that is summed over all resumes
WORKER_FACT = "worker"  # name of the fact that lists the workers of all resumes


class NullTrace:
    """A trace that records nothing, for engines whose events are inspected as they happen."""

    def ignore(self, *values: object, **more: object) -> None:
        """Record nothing."""

    add = commit = note = ignore


class Trace:
    """Record rows in a file, or in memory if `path` is None.

    Kinds of rows: dispatch, arrive, reject (by the strategy), refuse (by the gate), lost, late, duplicate, left, back,
    examples, timer, stop. `version` is the version when the row was written, `bytes` the size of the transfer. Commits
    have a table of their own. `seq` runs through all tables, in the order of what happened.

    Rows are kept as SQLite returns them (times are floats, -0.0 becomes 0.0, nan becomes None), so that their hash
    equals that of the file. The file is created by the first write.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._flushed_at = self._checked_at = clock()
        self.seq = 0
        self._blocks: dict[str, list[tuple[object, ...]]] = {table: [] for table in TABLES}  # rows to be written
        self._rows, self._commits, self._notes, self._metrics, self._clients = self._blocks.values()
        self.digest_so_far = TraceDigest()  # of the rows that were written
        self._next_check = self._next_clock_check()
        self._db: sqlite3.Connection | None = None
        self.retry_failed_writes = False  # log failed writes for readers and repeat them later instead of raising
        self._disk_full = False
        self._unsynced = False  # rows were handed to the system that may not be on the disk

    @property
    def db(self) -> sqlite3.Connection:
        """Open the file when it is first needed."""
        # not a cached property: it would slow down access to all attributes
        if self._db is None:
            self._db = open_for_writing(self.path)
        return self._db

    # ------------------------------------------------------------ recording

    def add(
        self,
        now: float,
        kind: str,
        version: int,
        client: int | None = None,
        ticket: int | None = None,
        base_version: int | None = None,
        steps: int | None = None,
        examples: int | None = None,
        size: int | None = None,
        detail: str | None = None,
    ) -> None:
        """Record what happened to a client, ticket or timer."""
        seq = self.seq
        if seq >= self._next_check:
            self._write_if_due()
        self._rows.append((seq, now + 0.0, kind, client, ticket, version, base_version, steps, examples, size, detail))
        self.seq = seq + 1

    def commit(self, now: float, version: int) -> None:
        """Record a new version of the model."""
        seq = self.seq
        self._commits.append((seq, now + 0.0, version))
        self.seq = seq + 1

    def note(self, now: float, ticket: int | None, values: Mapping[str, float]) -> None:
        """Record quantities of the strategy."""
        self._notes.extend((self.seq, now + 0.0, ticket, key, _real(value)) for key, value in values.items())
        self.seq += 1

    def metrics(self, now: float, version: int, updates: int, values: Mapping[str, float]) -> None:
        """Record an evaluation."""
        columns = self.seq, now + 0.0, version, updates
        self._metrics.extend((*columns, key, _real(value)) for key, value in values.items())
        self.seq += 1

    def clients(self, now: float, version: int, values: Mapping[int, Mapping[str, float]]) -> None:
        """Record the metrics of each client."""
        for client, metrics in values.items():
            columns = self.seq, now + 0.0, version, client
            self._clients.extend((*columns, key, _real(value)) for key, value in metrics.items())
        self.seq += 1

    def set_facts(self, facts: Mapping[str, object]) -> None:
        """Store facts about the whole run (how it ended, host seconds), which are not part of the digest."""
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", [(k, str(v)) for k, v in facts.items()])

    # ------------------------------------------------------------ writing

    def _next_clock_check(self) -> int:
        """Return the `seq` at which to write a full block or check the clock; in memory only blocks matter."""
        free_rows = BLOCK_ROWS - len(self._rows)
        if free_rows <= 0:  # the disk is full: blocks grow
            free_rows = ROWS_BETWEEN_CLOCK_CHECKS
        return self.seq + (free_rows if self.path is None else min(free_rows, ROWS_BETWEEN_CLOCK_CHECKS))

    def _write_if_due(self) -> None:
        """Write a full block, or all rows if readers are too far behind."""
        if len(self._rows) >= BLOCK_ROWS:
            self._write(durable=False)
        else:
            self.flush_if_behind()
        self._next_check = self._next_clock_check()

    def flush_if_behind(self, waits: int = 1) -> int:
        """Write rows before a wait, if readers would otherwise be too far behind at the next call.

        `waits` is the number of waits since the last call. Returns the number until the next one: those that take a
        hundredth of the lag, because checking the clock before each short wait would cost more than the wait.
        """
        if self.path is None:
            return MAX_SKIPPED_WAITS
        now = self._clock()
        gap = now - self._checked_at
        if now + gap > self._flushed_at + MAX_READER_LAG:
            self._write()
            self._flushed_at = now
        self._checked_at = now
        return max(1, min(MAX_SKIPPED_WAITS, 2 * waits, int(MAX_READER_LAG / 100 * waits / max(gap, 1e-9))))

    def _write(self, durable: bool = True) -> None:
        """Write all rows; if the disk is full either raise RunError or keep them for the next write."""
        try:
            self.flush(durable)
            self._disk_full = False
        except RunError as error:
            if not self.retry_failed_writes:
                raise
            if not self._disk_full:
                log.warning("%s; retrying", error)
            self._disk_full = True

    def flush(self, durable: bool = True) -> None:
        """Write all rows, and wait for the disk if `durable`; otherwise a crash of the system may lose them."""
        if not any(self._blocks.values()) and not (durable and self._unsynced):
            return
        try:
            with self._transaction(durable) as db:
                for table, rows in self._blocks.items():
                    insert_rows(db, table, rows)
        except (sqlite3.Error, OverflowError) as error:
            raise RunError(f"cannot write the trace {self.path}: {error}") from None
        for table, rows in self._blocks.items():
            self.digest_so_far.add(table, rows)
            rows.clear()
        self._next_check = self._next_clock_check()

    @contextmanager
    def _transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Commit the changes that are made in this context, or none of them if it raises."""
        db = self.db
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        db.execute("BEGIN")
        try:
            yield db
            if durable and self._unsynced:
                db.execute("PRAGMA user_version=0")  # a commit that changes no page does not wait for the disk
            db.execute("COMMIT")
            self._unsynced = not durable
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    # ------------------------------------------------------------ resuming

    def verify(self, seq: int, stored: StoredDigest) -> TraceDigest:
        """Return the digest of the rows before `seq`, which must equal the stored one. Nothing on disk changes."""
        if self.path is None:
            raise RunError("the trace of this run is in memory: to resume a run give its trace a path")
        if not self.path.is_file():
            raise RunError(f"{self.path} is missing, and the checkpoint is of row {seq}: restore it, or start over")
        try:
            with closing(open_read_only(self.path)) as db:
                digest = verified_digest(db, seq)
        except sqlite3.Error as error:
            raise CheckpointError(f"{self.path} is damaged: {error}") from None
        if difference := digest.difference(stored):
            raise CheckpointError(f"{self.path} does not match the checkpoint: {difference}")
        return digest

    def truncate(self, seq: int, digest: TraceDigest | None = None) -> None:
        """Delete all rows from `seq` on, which will be repeated; `digest` is that of the others, if known."""
        with self._transaction() as db:
            for table in TABLES:
                db.execute(f"DELETE FROM {table} WHERE seq >= ?", (seq,))
            db.execute("DELETE FROM facts WHERE key NOT IN (?, ?)", (WALL_SECONDS, WORKER_FACT))
        self.seq = seq
        self._next_check = self._next_clock_check()
        self.digest_so_far = digest or TraceDigest.from_database(self.db)

    def clear(self) -> None:
        """Start over in a new file; an existing one is deleted without being read."""
        if self.path is None:
            self.truncate(0)
            return
        for path in trace_files(self.path):
            path.unlink(missing_ok=True)

    def rows(self, query: str, values: tuple[object, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Execute a query after writing all rows."""
        self.flush()
        return iter(self.db.execute(query, values))

    def digest(self) -> str:
        """Return a hash of all rows: equal digests mean equal runs."""
        self.flush()
        return TraceDigest.from_database(self.db).hexdigest()

    def close(self) -> None:
        """Write all rows and close the file."""
        self.flush()
        self.db.close()

    def close_after_error(self) -> None:
        """Close the file without raising another error; a file that was never opened is not created."""
        if self._db is not None:
            with suppress(OffbeatError):
                self.flush()
            self._db.close()


@dataclass(slots=True)
class Traffic:
    """Count the bytes of each download and upload; a strategy that shares no model (`shares`) costs nothing.

    If clients keep the model that they sent or received last (`clients_keep`), sending it to them again costs nothing.
    """

    model_bytes: int
    shares: bool = True
    clients_keep: bool = False
    client_models: dict[int, Tensor] = field(default_factory=dict)  # client -> model it has, with `clients_keep`

    @classmethod
    def of(cls, contract: Contract, model: Tensor) -> Traffic:
        """Start counting for a strategy and its model."""
        return cls(model.nbytes, contract.shares, contract.clients_keep)

    def count_download(self, action: Dispatch) -> int:
        """Return the bytes of a dispatch."""
        if not self.shares:
            return 0
        extras = action.work.extras
        size = _total_bytes(extras) if extras else 0
        if self.clients_keep and self._has_model(action.client, action.model):
            return size
        return size + self.model_bytes

    def count_upload(self, client: int, local: Tensor, extras: Mapping[str, Tensor]) -> int:
        """Return the bytes of an accepted update."""
        if not self.shares:
            return 0
        if self.clients_keep:
            self.client_models[client] = local
        return self.model_bytes + _total_bytes(extras) if extras else self.model_bytes

    def wasted_upload(self) -> int:
        """Return the bytes of an upload that is late, duplicate or refused; its extras are not known."""
        return self.model_bytes if self.shares else 0

    def _has_model(self, client: int, model: Tensor) -> bool:
        """Return whether the client has this model already; it has from now on."""
        known = self.client_models.get(client)
        self.client_models[client] = model
        return known is not None and (known is model or torch.equal(known, model))


def _real(value: float) -> float | None:
    """Return a number as SQLite returns it."""
    return float(value) + 0.0 if value == value else None


def _total_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of all tensors in bytes."""
    return sum(t.nbytes for t in tensors.values())
