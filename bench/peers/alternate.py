"""A framework and the plain loop in turn, in one process: what every file of this folder measures with.

Both train so many clients of the same world on one thread; told is the time of one client's update over that of the
plain loop in the same round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from plain import plain_loop, told, work_of
from workloads import CLIENTS, TRAINING, WORLDS, K

ROUNDS = 5
UPDATES = {"W1": 20, "W2": 300}  # of both in a round


@dataclass(frozen=True)
class Given:
    """One world, for one framework and method."""

    name: str
    who: str
    module: nn.Module
    pairs: list[tuple[Tensor, Tensor]]

    @staticmethod
    def of(name: str, who: str = "") -> Given:
        return Given(name, who, WORLDS[name].module(), WORLDS[name].pairs())

    @property
    def updates(self) -> int:
        return UPDATES[self.name]

    def measure(self, theirs: Callable[[], int], cores: bool = True) -> None:
        """`theirs` trains clients, `updates` of them if it can be told to, and returns how many. `cores` is whether the
        system tells what all of its processes did.
        """
        jobs = [self.pairs[i % CLIENTS] for i in range(self.updates)]
        loop = lambda: plain_loop(copy.deepcopy(self.module), jobs, TRAINING, average=K)  # noqa: E731
        done = [theirs()]  # warm
        loop()
        wall, work = [], []
        for _ in range(ROUNDS):
            seconds, spent = work_of(loop)
            took, used = work_of(lambda: done.append(theirs()))
            share = self.updates / done[-1]
            wall.append(took / seconds * share)
            work.append(used / spent * share)
        also = f"; work of all cores {told(work)}" if cores else ""
        print(f"{self.name}: {self.who} / plain loop = {told(wall)}{also}", flush=True)
