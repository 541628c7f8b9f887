"""What the benchmarks measure against: local training as one would write it without a framework; and how ratios are
told.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

import torch
from torch import nn

from offbeat.training.trainer import Training

MANY = 20  # values, from which on a range says little
TICK = 0.01  # seconds: finer, the system does not tell what processes took


def plain_loop(
    model: nn.Module, jobs: list[tuple[torch.Tensor, torch.Tensor]], training: Training, average: int | None = None
) -> None:
    """Each job loads the weights, trains and reads the weights; after every `average` jobs these are averaged, or never
    and each job starts from the same weights.
    """
    start, read = copy.deepcopy(model.state_dict()), []
    assert training.epochs is not None
    for x, y in jobs:
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=training.lr)
        for _ in range(training.epochs):
            order = torch.randperm(len(x))
            for i in range(0, len(x), training.batch):
                batch = order[i : i + training.batch]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
        if average is None:
            continue
        read.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        if len(read) == average:
            start = {name: torch.stack([local[name] for local in read]).mean(0) for name in start}
            read.clear()


def cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def wall(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def work_of(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the wall, and of all cores: of this process and of those that it started and that ended."""
    before = os.times()
    took = wall(work)
    after = os.times()
    return took, max(TICK, sum(after[:4]) - sum(before[:4]))


def ratios(
    contenders: Mapping[str, Callable[[], object]], against: Callable[[], object], rounds: int
) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """Of time on the wall and of all cores, everyone in turn in every round; and the least seconds of the one they are
    measured against.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    least = inf
    for _ in range(rounds):
        seconds, spent = work_of(against)
        least = min(least, seconds)
        for name, work in contenders.items():
            mine = work_of(work)
            found[name].append((mine[0] / seconds, mine[1] / spent))
    return found, least


def told(values: Sequence[float]) -> str:
    """The median with its range; of many values, of which one is always far off, with the 95 % interval of it."""
    many = len(values) > MANY
    low, high = interval(list(values)) if many else (min(values), max(values))
    middle = statistics.median(values)
    n = digits(middle)
    return f"{middle:.{n}f} (median of {len(values)}, {'95 % interval ' if many else ''}{low:.{n}f} to {high:.{n}f})"


def digits(middle: float) -> int:
    return 3 if middle < 10 else 1


def interval(values: list[float]) -> tuple[float, float]:
    """A distribution-free 95 % interval of the median: ranks n/2 -+ 0.98 sqrt(n)."""
    ranked = sorted(values)
    half = 0.98 * len(ranked) ** 0.5
    low, high = int(len(ranked) / 2 - half), int(len(ranked) / 2 + half)
    return ranked[max(low, 0)], ranked[min(high, len(ranked) - 1)]
