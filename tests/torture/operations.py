"""Something happens at the n-th file operation of a short run: an I/O error, a disk that is full from then on, a
SIGKILL, a power failure that takes what was not made durable. For every n: it ends with one line, and goes on to the
same digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self

from cases import Case, begin, finish, same, tail
from children import KILLED, Wrong, call, child
from disk import HOWS, Disk
from worlds import LIMITED, TROUBLED, World

from offbeat.engine import trace

WORLDS: tuple[World, ...] = (
    ("strategy=fedasync", "until=4updates"),
    ("strategy=fedavg", "until=8updates"),
    ("strategy=fedpsa", "strategy.buffer=2", "until=5updates", *TROUBLED),
    ("strategy=orthofl", "until=6updates", *TROUBLED),
    ("strategy=ca2fl", "strategy.k=2", "until=6updates", LIMITED),
)


@dataclass(frozen=True, kw_only=True)
class Operation(Case):
    part = "operations"
    at: int
    how: str

    def attack(self, folder: Path) -> str:
        disk = Disk((folder / "run").resolve(), self.at, self.how)
        ended = child(on(disk, begin(folder, self.world)))
        if self.how in ("error", "full"):
            if ended.status == 0:
                same(folder, self.world)
                return f"{self.how}: went on"
            if not ended.one_line:
                raise Wrong(f"status {ended.status}, and not one line: {tail(ended)}")
        elif ended.status not in (0, KILLED):
            raise Wrong(f"before it could be killed it ended with status {ended.status}: {tail(ended)}")
        finish(folder, self.world)
        return f"{self.how}: same after"

    def smaller(self) -> Iterator[Self]:
        for at in sorted({1, self.at // 2, self.at - 8, self.at - 1} - {self.at}):
            if at > 0:
                yield replace(self, at=at)
        yield from super().smaller()


def on(disk: Disk, arguments: tuple[object, ...]) -> Callable[[], int]:
    def work() -> int:
        prepare(disk)
        return call(*arguments)()

    return work


def prepare(disk: Disk) -> None:
    """In a child: every row of the trace is a block, which is handed to the system only."""
    trace.BLOCK_ROWS = 1
    disk.install()


@cache
def count(world: World) -> int:
    """File operations of the run that nobody touches."""
    with TemporaryDirectory() as name:
        folder = Path(name).resolve()
        disk, told = Disk(folder / "run"), folder / "count"

        def work() -> int:
            prepare(disk)
            try:
                return call(*begin(folder, world))()
            finally:
                told.write_text(f"{disk.count} {disk.loose}")

        ended = child(work)
        if ended.status != 0:
            raise Wrong(f"it does not even run when left in peace: {tail(ended)}")
        operations, loose = map(int, told.read_text().split())
        if not loose:
            raise Wrong("nothing was written that waits for a later write to be durable")
        return operations


def cases(seed: int, power: bool = False) -> Iterator[Operation]:
    """Every operation with everything that can happen there, in random order: whenever it is stopped, all parts were
    seen.
    """
    rng = Random(f"operations {seed}")
    for world in WORLDS:
        hows = [how for how in HOWS if ("power" in how) == power]
        todo = [(at, how) for at in range(1, count(world) + 1) for how in hows]
        rng.shuffle(todo)
        yield from (Operation(world=world, at=at, how=how) for at, how in todo)
