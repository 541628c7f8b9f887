"""Limit the RAM for state that a server keeps per client, written SIZE or SIZE:half.

State beyond the limit is stored in files of the run. This never changes a result, so, like the worker, the limit is an
option of a run and not part of an experiment. `half` rounds the state to 16 bits (bfloat16), which does change results;
it is fixed when the run is created.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from offbeat.core.errors import ConfigError
from offbeat.engine import Checkpoints, ClientMemory, has_slot_files, remove_slot_files
from offbeat.experiment.run import checksums

UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
SIZE_PATTERN = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-z]+)", re.ASCII | re.IGNORECASE)
FACT = "client_memory"  # name of the fact in the trace and of the key in environment.json


@dataclass(frozen=True)
class MemoryLimit:
    """A limit in bytes, and whether vectors are stored in 16 bits."""

    max_bytes: int
    half: bool = False

    def __str__(self) -> str:
        """Format the limit as `parse_memory_limit` reads it."""
        unit = next(unit for unit in ("TB", "GB", "MB", "kB", "B") if self.max_bytes % UNITS[unit] == 0)
        return f"{self.max_bytes // UNITS[unit]}{unit}{':half' if self.half else ''}"

    def open(self, folder: Path | None = None, device: torch.device | str = "cpu") -> ClientMemory:
        """Create the client memory; without a folder, its files are temporary."""
        return ClientMemory(self.max_bytes, half_precision=self.half, folder=folder, device=device)


def parse_memory_limit(text: str) -> MemoryLimit:
    """Parse a limit such as 8GB, 500MB or 8GB:half."""
    size, colon, how = text.strip().partition(":")
    if colon and how != "half":
        raise ConfigError(f"client memory {text!r}: only :half may follow the size; write {size}:half")
    match = SIZE_PATTERN.fullmatch(size)
    units = {name.lower(): factor for name, factor in UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise ConfigError(f"client memory {text!r}: write a size with its unit, such as 8GB, 500MB or 8GB:half")
    max_bytes = int(float(match[1]) * units[match[2].lower()])
    if max_bytes < 1:
        raise ConfigError(f"client memory {text!r}: must be more than 0")
    return MemoryLimit(max_bytes, bool(colon))


def memory_facts(limit: MemoryLimit | None) -> dict[str, object]:
    """Return the fact that a trace stores about the limit."""
    return {} if limit is None else {FACT: limit}


def open_memory(folder: Path, limit: MemoryLimit | None, device: torch.device | str = "cpu") -> ClientMemory | None:
    """Open the client memory of a run; None if there is neither a limit nor a file of an earlier execution."""
    checkpoint = folder / "checkpoint"
    if not Checkpoints(checkpoint).exist():
        remove_slot_files(checkpoint)  # left by an execution that wrote no checkpoint
    if limit is None:  # a checkpoint may still refer to files
        return ClientMemory(folder=checkpoint, device=device) if has_slot_files(checkpoint) else None
    return limit.open(checkpoint, device)


def resume_limit(folder: Path, text: str | None) -> MemoryLimit | None:
    """Return the limit for resuming: a new one or that of the run; the precision must not change."""
    recorded = checksums.read_environment_text(folder, FACT)
    before = None if recorded is None else parse_memory_limit(recorded)
    if text is None:
        return before
    limit, half = parse_memory_limit(text), before is not None and before.half
    if limit.half != half:
        stored = "16 bits" if half else "full precision"
        raise ConfigError(f"client memory {text!r}: the run stores {stored}, which cannot change on resume")
    return limit
