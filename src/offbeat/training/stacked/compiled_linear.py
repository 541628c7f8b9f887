"""Clients of one fully connected layer, each trained by a compiled loop (`linear_loops`), on several cores at once.

It takes Numba (the extra `fast`); without it such clients are stacked as all chains are. Threads do for several cores,
since a loop holds no lock of Python's: nothing is sent anywhere. What a client comes to depends on its own job alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.core.jobs import PLAIN, Job, Result
from offbeat.core.protocol import LocalRule
from offbeat.training.client_data import ClientData
from offbeat.training.cuda.linear_softmax import Layer, lying_plainly, one_layer, pull_of
from offbeat.training.plan import order_seeds
from offbeat.training.stacked.dense_chain import Chain
from offbeat.training.trainer import Trainer

log = logging.getLogger("offbeat")

ENOUGH = 2**22  # products of a weight and an example that are worth a thread: a tenth of a millisecond
PASSED = 2**30  # bytes of examples that are kept as they are beyond the model's door

Table = np.ndarray[Any, Any]


class Unusable(Exception):
    """The loop cannot be had here."""


class Compiled:
    def __init__(self, trainer: Trainer, data: ClientData, layer: Layer, loops: ModuleType) -> None:
        weight, bias, outputs, inputs = layer
        self._trainer, self._data, self._loops = trainer, data, loops
        self._layer = weight, -1 if bias is None else bias, outputs, inputs
        self._like = np.empty(0, np.float64 if trainer.binding.w.dtype == torch.float64 else np.float32)
        self._cores, self._threads = 1, None  # type: int, ThreadPoolExecutor | None

    @staticmethod
    def of(trainer: Trainer, chain: Chain | None) -> Compiled | None:
        """None for any other model or training, data that lies in another way, and where there is no compiler."""
        layer = None if trainer.binding.vector.device.type != "cpu" else one_layer(trainer, chain)
        if layer is None or chain is None or (loops := _loops()) is None:
            return None
        data, dtype, inputs = trainer.data, trainer.binding.w.dtype, layer[3]
        if chain.door is not None:
            if sum(map(len, data.inputs_lying())) * inputs * dtype.itemsize > PASSED:
                return None
            data = data.passed(chain.door)
        for x in data.inputs_lying():
            plain = x.is_contiguous() and not x.is_neg() and x.device.type == "cpu" and x.dtype == dtype
            if not plain or x.numel() != len(x) * inputs:
                return None
        return Compiled(trainer, data, layer, loops)

    def spread(self, cores: int) -> None:
        """Over so many cores at most from now on."""
        self.close()
        self._cores = cores

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None

    def train(self, jobs: Sequence[Job]) -> list[Result]:
        """Of jobs without a rule."""
        first, trainer = jobs[0].work, self._trainer
        if all(job.work is first for job in jobs):  # as a rule
            paces = trainer.paces(jobs)
        else:
            paces = [trainer.paces([job])[0] for job in jobs]
        ends = [torch.empty_like(job.base, memory_format=torch.contiguous_format).copy_(job.base) for job in jobs]
        self.descend(jobs, paces, ends, PLAIN)
        return [
            Result(job.ticket, end, job.num_examples, steps)
            for job, end, (_, steps) in zip(jobs, ends, paces, strict=True)
        ]

    def descend(
        self, jobs: Sequence[Job], paces: Sequence[tuple[float, int]], vectors: Sequence[Tensor], rule: LocalRule
    ) -> None:
        """Move each vector in place, from the base that it holds to where its job ends; `paces`: rates and steps."""
        like = self._trainer.binding.vector
        bases = {
            key: lying_plainly(base, like, like.numel())
            for key, base in {id(job.base): job.base for job in jobs}.items()
        }
        told = np.empty((len(jobs), 9), np.int64)
        kept = [self._data.lying(job.client) for job in jobs]  # rows may be computed: nobody else holds those
        rates, told[:, 5] = zip(*paces, strict=True)
        told[:, 6] = order_seeds(jobs).view(np.int64)
        told[:, :5] = [
            (x.data_ptr(), y.data_ptr(), 0 if rows is None else rows.data_ptr(), min(len(x), len(y)), job.num_examples)
            for job, (x, y, rows) in zip(jobs, kept, strict=True)
        ]
        told[:, 7] = [vector.data_ptr() for vector in vectors]
        told[:, 8] = [bases[id(job.base)].data_ptr() for job in jobs]
        self._spread_out(told, np.array(rates, np.float64), pull_of(rule), jobs)

    def _spread_out(self, told: Table, rates: Table, pull: float, jobs: Sequence[Job]) -> None:
        """Whoever calls holds what the table tells the addresses of: no thread may be at it when this ends."""
        batch = min(self._trainer.training.batch, int(told[:, 4].max()))  # no more room than somebody needs
        work = int(told[:, 5].sum()) * batch * self._trainer.binding.layout.size
        hands = max(1, min(self._cores, len(jobs), work // ENOUGH))
        parts = [np.arange(first, len(jobs), hands) for first in range(hands)]
        cut: list[Any] = [(told[some], rates[some], pull, batch, self._layer, self._like) for some in parts]
        if hands > 1 and self._threads is None:
            self._threads = ThreadPoolExecutor(self._cores - 1, "offbeat-clients")
        others = [self._threads.submit(self._loops.descend, *part) for part in cut[1:] if self._threads is not None]
        try:
            found = [self._loops.descend(*cut[0]), *(other.result() for other in others)]
        except MemoryError:
            raise
        except Exception as error:  # of the compiler, or of where it keeps what it made: a loop itself raises none
            raise Unusable(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        finally:
            wait(others)
        for part, wrong in zip(parts, found, strict=True):
            if wrong >= 0:
                raise IndexError(f"examples or labels of client {jobs[part[wrong]].client} are not there")


@cache
def _loops() -> ModuleType | None:
    """None where there is no Numba, or none that can be used here, which is said."""
    if find_spec("numba") is None:
        return None
    try:
        from numba import config

        if config.DISABLE_JIT:
            return None
        from offbeat.training.stacked import linear_loops

        seeds = (1, 2**62 + 12345)
        torchs = [torch.Generator().manual_seed(seed) for seed in seeds]
        own = [linear_loops.permutations(seed, 777, 3) for seed in seeds]
        drawn = [torch.cat([torch.randperm(777, generator=g) for _ in range(3)]) for g in torchs]
        if not all(np.array_equal(a, b.numpy()) for a, b in zip(own, drawn, strict=True)):
            raise RuntimeError("this version of torch shuffles in another way")
        return linear_loops
    except Exception as error:
        say_stacked(f"{type(error).__name__}: {error}")
        return None


def say_stacked(why: str) -> None:
    log.warning("loops are not compiled, clients are stacked instead (%s)", why)
