"""What a site keeps on disk of a run: its last result, until it is known what became of it.

A result lies under its ticket, with the memory its rule asks to keep and what a compression owes: both count only if
the server accepted that ticket. A later assignment says which ticket was accepted last, and is computed from what lies
under it; what was neither accepted nor asked for again is dropped. So at most two results lie here, nothing is moved,
and a file is written whole or not at all: whenever the process is killed, the same assignment finds the same things.

    runs/RUN/greeting        what the run is about, and since when this site takes part
    runs/RUN/TICKET.result   the reply as it was sent, the memory, what is owed
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
from offbeat.deploy.tensor_codec import WireError, seal, unseal
from offbeat.engine.checkpoint import write_whole

log = logging.getLogger("offbeat")
ANY = 1 << 62  # bytes: what lies here we wrote ourselves
RUNS = 20  # of which something is kept at a time
MEMORY, REPLY, RESIDUAL = "memory.", "reply", "residual"


class OutboxError(OffbeatError):
    """A result that could not be stored."""


@dataclass(frozen=True)
class Kept:
    """What lies under a ticket."""

    ticket: int
    index: int  # n-th job of this client
    order: str  # digest of the assignment: the same ticket with another job would be another job
    reply: bytes
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # as it is once the ticket is accepted
    residual: Tensor | None = None  # likewise


class Outbox:
    """One run's. Not for several threads at once."""

    def __init__(self, home: Path, run: str) -> None:
        self.folder = home / "runs" / hashlib.sha256(run.encode(errors="replace")).hexdigest()[:16]
        self._last: Kept | None = None  # the newest one, in memory too: the next job begins with what it kept

    def find(self, ticket: int | None) -> Kept | None:
        if ticket is None:
            return None
        if self._last is not None and self._last.ticket == ticket:
            return self._last
        path = self._path(ticket)
        try:
            return _read(ticket, path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, WireError, KeyError) as error:
            log.warning("%s cannot be read, and is left alone: %s", path, error)
            return None

    def keep(self, kept: Kept) -> None:
        """Durably: once this returns, no crash takes it away."""
        tensors = {MEMORY + name: tensor for name, tensor in kept.memory.items()}
        if kept.residual is not None:
            tensors[RESIDUAL] = kept.residual
        # bytes as a tensor; a copy, since those of an immutable object must not be lent
        tensors[REPLY] = torch.frombuffer(bytearray(kept.reply), dtype=torch.uint8)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path(kept.ticket), seal({"index": kept.index, "order": kept.order}, tensors))
        except (OSError, OffbeatError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise OutboxError(f"the result could not be stored at the site: {reason}") from None
        self._last = kept

    def settle(self, accepted: int | None) -> None:
        """Drop all but what was accepted last: the other results will not be asked for again."""
        for ticket in self.tickets():
            if ticket != accepted:
                with contextlib.suppress(OSError):
                    self._path(ticket).unlink(missing_ok=True)
        if self._last is not None and self._last.ticket != accepted:
            self._last = None

    def tickets(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.result") if path.stem.isdecimal())

    def newest(self) -> Kept | None:
        tickets = self.tickets()
        return self.find(tickets[-1]) if tickets else None

    def remember(self, greeting: bytes, since: float) -> None:
        """What the run is about: a site that is started anew goes on without being greeted."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.folder.glob("*.tmp"):  # by one that was killed while it wrote
            left.unlink(missing_ok=True)
        tensors = {REPLY: torch.frombuffer(bytearray(greeting), dtype=torch.uint8)}
        write_whole(self.folder / "greeting", seal({"since": since}, tensors))

    def greeting(self) -> tuple[bytes, float] | None:
        try:
            fields, tensors = unseal((self.folder / "greeting").read_bytes(), ANY)
            return tensors[REPLY].numpy().tobytes(), float(fields["since"])
        except (OSError, WireError, KeyError, TypeError, ValueError):
            return None

    def outlive(self) -> None:
        """Drop what is kept of runs that were left behind long ago, whose servers never said that they ended."""
        with contextlib.suppress(OSError):
            others = [path for path in self.folder.parent.iterdir() if path != self.folder and path.is_dir()]
            for path in sorted(others, key=lambda path: path.stat().st_mtime)[: -(RUNS - 1)]:
                log.warning("%s is of a run that %d others have followed: it is dropped", path, RUNS)
                shutil.rmtree(path, ignore_errors=True)

    def clear(self) -> None:
        """The run is over."""
        self._last = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, ticket: int) -> Path:
        return self.folder / f"{ticket}.result"


def _read(ticket: int, data: bytes) -> Kept:
    fields, tensors = unseal(data, ANY)
    memory = {name.removeprefix(MEMORY): tensor for name, tensor in tensors.items() if name.startswith(MEMORY)}
    reply = tensors[REPLY].numpy().tobytes()
    return Kept(ticket, int(fields["index"]), str(fields["order"]), reply, memory, tensors.get(RESIDUAL))
