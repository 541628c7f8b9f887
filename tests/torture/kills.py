"""Kill a run several times with SIGKILL at random moments; the resumed run must equal an undisturbed one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Self

import worlds
from cases import Case, begin_arguments, finish_run, resume_arguments, undisturbed_digest
from child_processes import KILLED, PromiseBroken, offbeat_call, run_child

from offbeat.core.strategies import REGISTRY


@dataclass(frozen=True, kw_only=True)
class Kill(Case):
    """Kills at moments that are shares of the duration of the run, so that they hit it on slow machines too."""

    part = "kills"
    moments: tuple[float, ...] = ()

    def attack(self, folder: Path) -> str:
        length = _measure_run(folder / "timed", self.world)
        for moment in self.moments:
            ended = run_child(offbeat_call(*resume_arguments(folder, self.world)), kill_after=moment * length)
            if ended.status not in (0, KILLED):
                raise PromiseBroken(f"the run ended with status {ended.status} before the kill: {ended.err[-300:]}")
        finish_run(folder, self.world)
        return "same"

    def smaller(self) -> Iterator[Self]:
        for i in range(len(self.moments)):
            yield replace(self, moments=self.moments[:i] + self.moments[i + 1 :])
        yield from super().smaller()


def _measure_run(folder: Path, world: worlds.World) -> float:
    undisturbed_digest(world)
    folder.mkdir()
    began = time.monotonic()
    run_child(offbeat_call(*begin_arguments(folder, world)))
    return time.monotonic() - began


def cases(seed: int) -> Iterator[Kill]:
    """Yield cases for all strategies in worlds with all kinds of trouble."""
    i = 0
    while True:
        for name in REGISTRY:
            rng = Random(f"kills {seed} {i}")
            # mostly early, because then most of the run follows
            moments = tuple(round(rng.random() ** 2, 3) for _ in range(rng.randint(1, 5)))
            yield Kill(world=worlds.troubled_world(name), moments=moments)
            i += 1
