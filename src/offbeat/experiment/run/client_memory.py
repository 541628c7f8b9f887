"""How much memory a server may take for what it keeps of its clients, written SIZE or SIZE:half.

What does not fit lies in files of the run. Where it lies never changes a result, so, like the worker, this is an option
of a run and no part of an experiment. `half` does: what is kept is rounded to 16 bits (bfloat16). It is settled when a
run is begun.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from offbeat.core.errors import ConfigError, RunError
from offbeat.engine import slot_files
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.client_store import ClientMemory
from offbeat.experiment.run import checksums

UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
SIZE_PATTERN = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-z]+)", re.ASCII | re.IGNORECASE)
FACT = "client_memory"  # its name among the facts of a run


@dataclass(frozen=True)
class MemoryLimit:
    max_bytes: int  # bytes
    half: bool = False

    def __str__(self) -> str:
        unit = next(unit for unit in ("TB", "GB", "MB", "kB", "B") if self.max_bytes % UNITS[unit] == 0)
        return f"{self.max_bytes // UNITS[unit]}{unit}{':half' if self.half else ''}"

    def make(self, folder: Path | None = None, device: torch.device | str = "cpu") -> ClientMemory:
        return ClientMemory(self.max_bytes, half_precision=self.half, folder=folder, device=device)


def parse_memory_limit(text: str) -> MemoryLimit:
    """'8GB', '500MB', '8GB:half'."""
    size, colon, how = text.strip().partition(":")
    if colon and how != "half":
        raise ConfigError(f"client memory {text!r}: after the size comes nothing, or half; write {size}:half")
    written = SIZE_PATTERN.fullmatch(size)
    units = {name.lower(): bytes_ for name, bytes_ in UNITS.items()}
    if written is None or written[2].lower() not in units:
        raise ConfigError(
            f"client memory {text!r}: write a size with its unit, such as 8GB or 500MB, and :half behind it to keep "
            "what clients have in 16 bits"
        )
    most = int(float(written[1]) * units[written[2].lower()])
    if most < 1:
        raise ConfigError(f"client memory {text!r}: must be more than nothing")
    return MemoryLimit(most, bool(colon))


def memory_facts(choice: MemoryLimit | None) -> dict[str, object]:
    """What a reader of the results has to know."""
    return {} if choice is None else {FACT: choice}


def recorded_limit(folder: Path) -> MemoryLimit | None:
    """What a run folder says of how it was begun; None: all that is kept of clients stays in memory."""
    try:
        stored = checksums.read_checksummed(folder / "environment.json").get(FACT)
    except (FileNotFoundError, RunError):
        return None
    return parse_memory_limit(stored) if isinstance(stored, str) else None


def open_memory(folder: Path, limit: MemoryLimit | None, device: torch.device | str = "cpu") -> ClientMemory | None:
    """The memory of a run in this folder, whose models lie on that device."""
    beside = folder / "checkpoint"
    if not Checkpoints(beside).exist():
        slot_files.remove_slot_files(beside)  # of an attempt that nothing can be gone on from
    if limit is None:  # a checkpoint may refer to files nevertheless
        return ClientMemory(folder=beside, device=device) if slot_files.has_slot_files(beside) else None
    return limit.make(beside, device)


def remove_memory_files(folder: Path) -> None:
    """The run is complete, and not resumed any more."""
    slot_files.remove_slot_files(folder / "checkpoint")


def resume_limit(folder: Path, given: str | None) -> MemoryLimit | None:
    """What a run goes on with: what it was begun with, or another size; not in another precision."""
    before = recorded_limit(folder)
    if given is None:
        return before
    chosen = parse_memory_limit(given)
    if chosen.half != (before is not None and before.half):
        how = "half" if before is not None and before.half else "full"
        raise ConfigError(
            f"client memory {given!r}: the run was begun with {how} precision of what clients have, and goes on with it"
        )
    return chosen
