"""Train single-layer models with a compiled loop (`linear_loops`), in several threads.

This needs Numba (the extra `fast`). The loop releases Python's global lock, so threads use several cores. The result
of a client depends on its own job only.
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

from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalRule
from offbeat.training.client_data import ClientData
from offbeat.training.cuda.linear_softmax import Layer, contiguous_base, find_single_layer, pull_strength
from offbeat.training.descent import order_seeds
from offbeat.training.stacked.dense_chain import DenseChain
from offbeat.training.trainer import Trainer

log = logging.getLogger("offbeat")

MIN_PRODUCTS_PER_THREAD = 2**22  # products of a weight and an example that are worth a thread: a tenth of a millisecond
MAX_TRANSFORMED_BYTES = 2**30  # bytes of examples that are kept as they are after the input transform

Table = np.ndarray[Any, Any]


class CompiledLoopUnavailable(Exception):
    """Raised if the compiled loop cannot be used on this machine."""


class CompiledLinear:
    def __init__(self, trainer: Trainer, data: ClientData, layer: Layer, loops: ModuleType) -> None:
        weight, bias, outputs, inputs = layer
        self._trainer, self._data, self._loops = trainer, data, loops
        self._layer = weight, -1 if bias is None else bias, outputs, inputs
        self._like = np.empty(0, np.float64 if trainer.binding.w.dtype == torch.float64 else np.float32)
        self._cores, self._threads = 1, None  # type: int, ThreadPoolExecutor | None

    @staticmethod
    def for_trainer(trainer: Trainer, chain: DenseChain | None) -> CompiledLinear | None:
        """Return None for other models, training settings or memory layouts, and without Numba."""
        layer = None if trainer.binding.vector.device.type != "cpu" else find_single_layer(trainer, chain)
        if layer is None or chain is None or (loops := _load_loops()) is None:
            return None
        data, dtype, inputs = trainer.data, trainer.binding.w.dtype, layer[3]
        if chain.transform is not None:
            if sum(map(len, data.input_tensors())) * inputs * dtype.itemsize > MAX_TRANSFORMED_BYTES:
                return None
            data = data.with_inputs(chain.transform)
        for x in data.input_tensors():
            plain = x.is_contiguous() and not x.is_neg() and x.device.type == "cpu" and x.dtype == dtype
            if not plain or x.numel() != len(x) * inputs:
                return None
        return CompiledLinear(trainer, data, layer, loops)

    def use_threads(self, cores: int) -> None:
        """Set the maximum number of threads."""
        self.close()
        self._cores = cores

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None

    def train(self, jobs: Sequence[Job]) -> list[Result]:
        """Train jobs without a rule."""
        first, trainer = jobs[0].work, self._trainer
        if all(job.work is first for job in jobs):  # as a rule
            paces = trainer.rates_and_steps(jobs)
        else:
            paces = [trainer.rates_and_steps([job])[0] for job in jobs]
        ends = [torch.empty_like(job.base, memory_format=torch.contiguous_format).copy_(job.base) for job in jobs]
        self.descend(jobs, paces, ends, PLAIN_RULE)
        return [
            Result(job.ticket, end, job.num_examples, steps)
            for job, end, (_, steps) in zip(jobs, ends, paces, strict=True)
        ]

    def descend(
        self, jobs: Sequence[Job], paces: Sequence[tuple[float, int]], vectors: Sequence[Tensor], rule: LocalRule
    ) -> None:
        """Replace each vector, which contains its base, by the result of its job; `paces` has rates and steps."""
        like = self._trainer.binding.vector
        bases = {
            key: contiguous_base(base, like, like.numel())
            for key, base in {id(job.base): job.base for job in jobs}.items()
        }
        table = np.empty((len(jobs), 9), np.int64)
        # keeps computed rows alive, which the table refers to by address
        stored = [self._data.stored_examples(job.client) for job in jobs]
        rates, table[:, 5] = zip(*paces, strict=True)
        table[:, 6] = order_seeds(jobs).view(np.int64)
        table[:, :5] = [
            (x.data_ptr(), y.data_ptr(), 0 if rows is None else rows.data_ptr(), min(len(x), len(y)), job.num_examples)
            for job, (x, y, rows) in zip(jobs, stored, strict=True)
        ]
        table[:, 7] = [vector.data_ptr() for vector in vectors]
        table[:, 8] = [bases[id(job.base)].data_ptr() for job in jobs]
        self._run_in_threads(table, np.array(rates, np.float64), pull_strength(rule), jobs)

    def _run_in_threads(self, table: Table, rates: Table, pull: float, jobs: Sequence[Job]) -> None:
        """Run the jobs in threads and wait for all of them, because the loops access memory by address."""
        batch = min(self._trainer.training.batch, int(table[:, 4].max()))  # at most the largest batch that is needed
        work = int(table[:, 5].sum()) * batch * self._trainer.binding.layout.size
        hands = max(1, min(self._cores, len(jobs), work // MIN_PRODUCTS_PER_THREAD))
        parts = [np.arange(first, len(jobs), hands) for first in range(hands)]
        cut: list[Any] = [(table[some], rates[some], pull, batch, self._layer, self._like) for some in parts]
        if hands > 1 and self._threads is None:
            self._threads = ThreadPoolExecutor(self._cores - 1, "offbeat-clients")
        others = [self._threads.submit(self._loops.train_jobs, *part) for part in cut[1:] if self._threads is not None]
        try:
            codes = [self._loops.train_jobs(*cut[0]), *(other.result() for other in others)]
        except MemoryError:
            raise
        except Exception as error:  # of the compiler, or of where it keeps what it made: a loop itself raises none
            raise CompiledLoopUnavailable(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        finally:
            wait(others)
        for part, wrong in zip(parts, codes, strict=True):
            if wrong >= 0:
                raise IndexError(f"examples or labels of client {jobs[part[wrong]].client} are not there")


@cache
def _load_loops() -> ModuleType | None:
    """Return the compiled loops, or None with a warning if Numba is missing or unusable."""
    if find_spec("numba") is None:
        return None
    try:
        from numba import config

        if config.DISABLE_JIT:
            return None
        from offbeat.training.stacked import linear_loops

        seeds = (1, 2**62 + 12345)
        torchs = [torch.Generator().manual_seed(seed) for seed in seeds]
        permutations = [linear_loops.permutations(seed, 777, 3) for seed in seeds]
        drawn = [torch.cat([torch.randperm(777, generator=g) for _ in range(3)]) for g in torchs]
        if not all(np.array_equal(a, b.numpy()) for a, b in zip(permutations, drawn, strict=True)):
            raise RuntimeError("this version of torch shuffles in another way")
        return linear_loops
    except Exception as error:
        warn_stacked(f"{type(error).__name__}: {error}")
        return None


def warn_stacked(why: str) -> None:
    log.warning("loops are not compiled, clients are stacked instead (%s)", why)
