"""SIGKILL at any moment, from right at the start, again and again: the run that is gone on with is the run nobody
killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Self

import worlds
from cases import Case, begin, digest, finish, go_on
from children import KILLED, Wrong, call, child

from offbeat.core.strategies import REGISTRY


@dataclass(frozen=True, kw_only=True)
class Kill(Case):
    """Moments are shares of what the whole run takes, so that they fall into it on a slow machine too."""

    part = "kills"
    moments: tuple[float, ...] = ()

    def attack(self, folder: Path) -> str:
        length = _length(folder / "timed", self.world)
        for moment in self.moments:
            ended = child(call(*go_on(folder, self.world)), kill_after=moment * length)
            if ended.status not in (0, KILLED):
                raise Wrong(f"before it could be killed it ended with status {ended.status}: {ended.err[-300:]}")
        finish(folder, self.world)
        return "same"

    def smaller(self) -> Iterator[Self]:
        for i in range(len(self.moments)):
            yield replace(self, moments=self.moments[:i] + self.moments[i + 1 :])
        yield from super().smaller()


def _length(folder: Path, world: worlds.World) -> float:
    digest(world)
    folder.mkdir()
    began = time.monotonic()
    child(call(*begin(folder, world)))
    return time.monotonic() - began


def cases(seed: int) -> Iterator[Kill]:
    """Every strategy in turn, where everything goes wrong."""
    i = 0
    while True:
        for name in REGISTRY:
            rng = Random(f"kills {seed} {i}")
            # early ones leave the most to do
            moments = tuple(round(rng.random() ** 2, 3) for _ in range(rng.randint(1, 5)))
            yield Kill(world=worlds.troubled(name), moments=moments)
            i += 1
