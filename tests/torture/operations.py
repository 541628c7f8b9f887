"""Let the n-th file operation of a short run fail, for every n.

Faults are an I/O error, a disk that is full from then on, a SIGKILL, and a power failure that loses everything not
synced. The run must end with one error line and, resumed, reach the same digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self

from cases import Case, begin_arguments, check_same_result, finish_run, last_output
from child_processes import KILLED, PromiseBroken, offbeat_call, run_child
from failing_disk import DISK_FAULTS, Disk
from worlds import MEMORY_LIMIT, TROUBLES, World

from offbeat.engine import trace

WORLDS: tuple[World, ...] = (
    ("strategy=fedasync", "until=4updates"),
    ("strategy=fedavg", "until=8updates"),
    ("strategy=fedpsa", "strategy.buffer=2", "until=5updates", *TROUBLES),
    ("strategy=orthofl", "until=6updates", *TROUBLES),
    ("strategy=ca2fl", "strategy.k=2", "until=6updates", MEMORY_LIMIT),
)


@dataclass(frozen=True, kw_only=True)
class Operation(Case):
    """A fault at one file operation."""

    part = "operations"
    at: int
    how: str

    def attack(self, folder: Path) -> str:
        disk = Disk((folder / "run").resolve(), self.at, self.how)
        ended = run_child(with_disk(disk, begin_arguments(folder, self.world)))
        if self.how in ("error", "full"):
            if ended.status == 0:
                check_same_result(folder, self.world)
                return f"{self.how}: continued"
            if not ended.one_line:
                raise PromiseBroken(f"status {ended.status}, and not one line: {last_output(ended)}")
        elif ended.status not in (0, KILLED):
            raise PromiseBroken(f"the run ended with status {ended.status} before the kill: {last_output(ended)}")
        finish_run(folder, self.world)
        return f"{self.how}: same after resuming"

    def smaller(self) -> Iterator[Self]:
        for at in sorted({1, self.at // 2, self.at - 8, self.at - 1} - {self.at}):
            if at > 0:
                yield replace(self, at=at)
        yield from super().smaller()


def with_disk(disk: Disk, arguments: tuple[object, ...]) -> Callable[[], int]:
    """Return a function that calls `offbeat ARGUMENTS` with a failing disk."""

    def work() -> int:
        install_disk(disk)
        return offbeat_call(*arguments)()

    return work


def install_disk(disk: Disk) -> None:
    """Install the disk in a child and write every row of the trace as one block."""
    trace.BLOCK_ROWS = 1
    disk.install()


@cache
def count_operations(world: World) -> int:
    """Return the number of file operations of the undisturbed run."""
    with TemporaryDirectory() as name:
        folder = Path(name).resolve()
        disk, count_file = Disk(folder / "run"), folder / "count"

        def work() -> int:
            install_disk(disk)
            try:
                return offbeat_call(*begin_arguments(folder, world))()
            finally:
                count_file.write_text(f"{disk.count} {disk.unsynced_commits}")

        ended = run_child(work)
        if ended.status != 0:
            raise PromiseBroken(f"the undisturbed run failed: {last_output(ended)}")
        operations, unsynced_commits = map(int, count_file.read_text().split())
        if not unsynced_commits:
            raise PromiseBroken("every commit was synced at once, so power failures would lose nothing")
        return operations


def cases(seed: int, power: bool = False) -> Iterator[Operation]:
    """Yield every operation with every fault in random order, so that a short attack also covers all parts of a run."""
    rng = Random(f"operations {seed}")
    for world in WORLDS:
        faults = [fault for fault in DISK_FAULTS if ("power" in fault) == power]
        attacks = [(at, fault) for at in range(1, count_operations(world) + 1) for fault in faults]
        rng.shuffle(attacks)
        yield from (Operation(world=world, at=at, how=fault) for at, fault in attacks)
