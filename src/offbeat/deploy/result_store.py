"""Store a site's last results on disk until the server has accepted or dropped them.

A result is stored under its ticket, with the memory of its rule and the residual of a compression; both take effect
only if the server accepts the ticket. The next assignment names the last accepted ticket and starts from its memory;
other results are then deleted. After a kill at any moment, the same assignment therefore finds the same state.

    runs/RUN/greeting        the description of the run and the time of joining
    runs/RUN/TICKET.result   the reply as sent, the memory and the residual
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from offbeat.core.errors import OffbeatError
from offbeat.deploy.tensor_codec import WireError, pack_tensors, unpack_tensors
from offbeat.engine import write_atomically

log = logging.getLogger("offbeat")
NO_LIMIT = 1 << 62  # bytes: these files were written by this site
MAX_RUNS = 20  # runs with stored results
MEMORY, REPLY, RESIDUAL = "memory.", "reply", "residual"


class ResultStoreError(OffbeatError):
    """A result that could not be stored."""


@dataclass(frozen=True)
class StoredResult:
    """A result that is stored under its ticket."""

    ticket: int
    index: int  # n-th job of this client
    order: str  # digest of the assignment: a reused ticket with another job does not match
    reply: bytes
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # in effect once the ticket is accepted
    residual: Tensor | None = None  # likewise


class ResultStore:
    """The stored results of one run. Not thread-safe."""

    def __init__(self, home: Path, run: str) -> None:
        self.folder = home / "runs" / hashlib.sha256(run.encode(errors="replace")).hexdigest()[:16]
        self._last: StoredResult | None = None  # the newest result, also in memory, for the next job

    def find(self, ticket: int | None) -> StoredResult | None:
        """Return the result of a ticket; None if there is none or it cannot be read."""
        if ticket is None:
            return None
        if self._last is not None and self._last.ticket == ticket:
            return self._last
        path = self._path(ticket)
        try:
            return _parse_result(ticket, path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, WireError, KeyError) as error:
            log.warning("%s cannot be read and is ignored: %s", path, error)
            return None

    def store(self, result: StoredResult) -> None:
        """Store a result durably, so that it survives a crash after this returns."""
        tensors = {MEMORY + name: tensor for name, tensor in result.memory.items()}
        if result.residual is not None:
            tensors[RESIDUAL] = result.residual
        # a copy, because torch needs a writable buffer
        tensors[REPLY] = torch.frombuffer(bytearray(result.reply), dtype=torch.uint8)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = pack_tensors({"index": result.index, "order": result.order}, tensors)
            write_atomically(self._path(result.ticket), data)
        except (OSError, OffbeatError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise ResultStoreError(f"the result could not be stored at the site: {reason}") from None
        self._last = result

    def drop_unaccepted(self, accepted: int | None) -> None:
        """Delete all results but the last accepted one; the server does not ask for the others again."""
        for ticket in self.tickets():
            if ticket != accepted:
                with contextlib.suppress(OSError):
                    self._path(ticket).unlink(missing_ok=True)
        if self._last is not None and self._last.ticket != accepted:
            self._last = None

    def tickets(self) -> list[int]:
        """Return the tickets of all stored results."""
        return sorted(int(path.stem) for path in self.folder.glob("*.result") if path.stem.isdecimal())

    def newest(self) -> StoredResult | None:
        """Return the result with the largest ticket."""
        tickets = self.tickets()
        return self.find(tickets[-1]) if tickets else None

    def store_greeting(self, greeting: bytes, since: float) -> None:
        """Store the greeting, so that a restarted site continues without a new one."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.folder.glob("*.tmp"):  # written by a process that was killed
            left.unlink(missing_ok=True)
        tensors = {REPLY: torch.frombuffer(bytearray(greeting), dtype=torch.uint8)}
        write_atomically(self.folder / "greeting", pack_tensors({"since": since}, tensors))

    def greeting(self) -> tuple[bytes, float] | None:
        """Return the stored greeting and its time; None if there is none."""
        try:
            fields, tensors = unpack_tensors((self.folder / "greeting").read_bytes(), NO_LIMIT)
            return tensors[REPLY].numpy().tobytes(), float(fields["since"])
        except (OSError, WireError, KeyError, TypeError, ValueError):
            return None

    def drop_old_runs(self) -> None:
        """Delete the results of old runs whose servers never sent a farewell."""
        with contextlib.suppress(OSError):
            others = [path for path in self.folder.parent.iterdir() if path != self.folder and path.is_dir()]
            for path in sorted(others, key=lambda path: path.stat().st_mtime)[: -(MAX_RUNS - 1)]:
                log.warning("%s belongs to a run that was followed by %d others and is deleted", path, MAX_RUNS)
                shutil.rmtree(path, ignore_errors=True)

    def clear(self) -> None:
        """Delete all results of the run after its end."""
        self._last = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, ticket: int) -> Path:
        return self.folder / f"{ticket}.result"


def _parse_result(ticket: int, data: bytes) -> StoredResult:
    """Convert the bytes of a file to a result."""
    fields, tensors = unpack_tensors(data, NO_LIMIT)
    memory = {name.removeprefix(MEMORY): tensor for name, tensor in tensors.items() if name.startswith(MEMORY)}
    reply = tensors[REPLY].numpy().tobytes()
    return StoredResult(ticket, int(fields["index"]), str(fields["order"]), reply, memory, tensors.get(RESIDUAL))
