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
from offbeat.experiment import checksummed_json

UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
WRITTEN = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-z]+)", re.ASCII | re.IGNORECASE)
FACT = "client_memory"  # its name among the facts of a run


@dataclass(frozen=True)
class Choice:
    most: int  # bytes
    half: bool = False

    def __str__(self) -> str:
        unit = next(unit for unit in ("TB", "GB", "MB", "kB", "B") if self.most % UNITS[unit] == 0)
        return f"{self.most // UNITS[unit]}{unit}{':half' if self.half else ''}"

    def make(self, folder: Path | None = None, device: torch.device | str = "cpu") -> ClientMemory:
        return ClientMemory(self.most, half=self.half, folder=folder, device=device)


def parse(text: str) -> Choice:
    """'8GB', '500MB', '8GB:half'."""
    size, colon, how = text.strip().partition(":")
    if colon and how != "half":
        raise ConfigError(f"client memory {text!r}: after the size comes nothing, or half; write {size}:half")
    written = WRITTEN.fullmatch(size)
    units = {name.lower(): bytes_ for name, bytes_ in UNITS.items()}
    if written is None or written[2].lower() not in units:
        raise ConfigError(
            f"client memory {text!r}: write a size with its unit, such as 8GB or 500MB, and :half behind it to keep "
            "what clients have in 16 bits"
        )
    most = int(float(written[1]) * units[written[2].lower()])
    if most < 1:
        raise ConfigError(f"client memory {text!r}: must be more than nothing")
    return Choice(most, bool(colon))


def facts(choice: Choice | None) -> dict[str, object]:
    """What a reader of the results has to know."""
    return {} if choice is None else {FACT: choice}


def begun_with(folder: Path) -> Choice | None:
    """What a run folder says of how it was begun; None: all that is kept of clients stays in memory."""
    try:
        stored = checksummed_json.read(folder / "environment.json").get(FACT)
    except (FileNotFoundError, RunError):
        return None
    return parse(stored) if isinstance(stored, str) else None


def of_run(folder: Path, limit: Choice | None, device: torch.device | str = "cpu") -> ClientMemory | None:
    """The memory of a run in this folder, whose models lie on that device."""
    beside = folder / "checkpoint"
    if not Checkpoints(beside).exist():
        slot_files.remove(beside)  # of an attempt that nothing can be gone on from
    if limit is None:  # a checkpoint may refer to files nevertheless
        return ClientMemory(folder=beside, device=device) if slot_files.there(beside) else None
    return limit.make(beside, device)


def remove(folder: Path) -> None:
    """The run is complete, and not resumed any more."""
    slot_files.remove(folder / "checkpoint")


def gone_on_with(folder: Path, given: str | None) -> Choice | None:
    """What a run goes on with: what it was begun with, or another size; not in another precision."""
    before = begun_with(folder)
    if given is None:
        return before
    chosen = parse(given)
    if chosen.half != (before is not None and before.half):
        how = "half" if before is not None and before.half else "full"
        raise ConfigError(
            f"client memory {given!r}: the run was begun with {how} precision of what clients have, and goes on with it"
        )
    return chosen
