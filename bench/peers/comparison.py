"""Compare a framework with the plain loop by running both alternately in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from measurement import format_median, wall_and_cpu_seconds
from workloads import CLIENTS, TRAINING, WORKLOADS, K, plain_loop

ROUNDS = 5
UPDATES = {"W1": 20, "W2": 300}  # per round, of the framework and of the loop


@dataclass(frozen=True)
class Comparison:
    """One workload for one framework and method; both train on one thread."""

    name: str
    label: str
    module: nn.Module
    client_data: list[tuple[Tensor, Tensor]]

    @staticmethod
    def on_workload(name: str, label: str = "") -> Comparison:
        return Comparison(name, label, WORKLOADS[name].module(), WORKLOADS[name].client_data())

    @property
    def updates(self) -> int:
        return UPDATES[self.name]

    def measure(self, train: Callable[[], int], cpu_time: bool = True) -> None:
        """Print the time of one update over that of the plain loop in the same round.

        `train` trains about `updates` clients and returns their number. `cpu_time` is False if the CPU time of the
        framework's processes cannot be measured.
        """
        jobs = [self.client_data[i % CLIENTS] for i in range(self.updates)]
        counts: list[int] = []

        def loop() -> None:
            plain_loop(copy.deepcopy(self.module), jobs, TRAINING, average=K)

        train()  # warm-up of both
        loop()
        wall_ratios, cpu_ratios = [], []
        for _ in range(ROUNDS):
            loop_wall, loop_cpu = wall_and_cpu_seconds(loop)
            wall, cpu = wall_and_cpu_seconds(lambda: counts.append(train()))
            share = self.updates / counts[-1]
            wall_ratios.append(wall / loop_wall * share)
            cpu_ratios.append(cpu / loop_cpu * share)
        more = f"; CPU time of all cores {format_median(cpu_ratios)}" if cpu_time else ""
        print(f"{self.name}: {self.label} / plain loop = {format_median(wall_ratios)}{more}", flush=True)
