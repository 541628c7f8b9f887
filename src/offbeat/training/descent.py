"""The descent of a job: its plan, the optimizers, and the loop over its steps.

The plan holds everything that is decided before the first step: batches, augmentation, learning rates, number of steps
and the seed of dropout. It is computed on the host and is a pure function of the job, so every worker takes the same
steps, whether it trains one client or a stack of clients.

The optimizers work on flat vectors, with the results of torch.optim. A step takes two or three operations, independent
of the number of parameters. All arithmetic is elementwise, so vectors may have leading client dimensions. Directions
are never changed in place, because the rule that returned one may still use it.

Layers such as dropout draw from PyTorch's global generators. Inside a job these are seeded from the job's key and
restored afterwards, so no job depends on another. Other threads wait meanwhile: two threads would draw each other's
numbers, and torch can deadlock if two threads ask for the state of a generator.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from operator import attrgetter
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from offbeat.core import draws
from offbeat.core.errors import unknown_name
from offbeat.core.jobs import Job, Rate
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import Gradient, Layout, LocalJob, LocalRule, Phase
from offbeat.training.regularization import CropFlip

Epoch = tuple[Tensor, list[int], Tensor | None]  # positions of examples, batch sizes, augmentation of each example
Schedule = tuple[float, tuple[Phase, ...], tuple[int, ...]]  # learning rate of the job, phases, steps of each phase

Features = Callable[[Tensor], tuple[Tensor, Tensor]]  # model -> (inputs of the head, labels)

_ORDER = "batches"
_job_key = attrgetter("seed", "client", "index")


def order_seeds(jobs: Collection[Job]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the seed of each job's batch order, equal to the seed that `draws.generator` uses."""
    return draws.bits_for_keys(_ORDER, map(_job_key, jobs)) >> np.uint64(1)


def order_generator(job: Job) -> torch.Generator:
    return draws.generator(job.seed, _ORDER, job.client, job.index)


@dataclass(slots=True)  # not frozen: one is made per job, and freezing would double its cost
class Plan:
    """The decisions of one job before its first step.

    Epochs must be drawn phase by phase, in order, because they come from one generator.
    """

    job: Job
    lr: float  # of the job; a phase may have its own
    phases: tuple[Phase, ...]
    phase_steps: tuple[int, ...]  # steps of each phase
    batch: int
    merge_last: bool  # merge a last batch of one example into the batch before
    augment: CropFlip | None
    _generators: dict[str, torch.Generator] | None = None  # made on first use

    @property
    def noise_seed(self) -> int:
        """The seed of dropout and of other random numbers that the model draws."""
        return draws.bits(self.job.seed, "noise", self.job.client, self.job.index) >> 1

    @property
    def steps(self) -> int:
        return sum(self.phase_steps)

    @property
    def largest_batch(self) -> int:
        """The number of examples in the largest batch."""
        examples = self.job.num_examples
        return min(examples, self.batch) + (self.merge_last and has_single_last(examples, self.batch))

    def learning_rate(self, phase: int) -> float:
        phase_lr = self.phases[phase].lr
        return self.lr if phase_lr is None else phase_lr

    def epochs(self, phase: int) -> Iterator[Epoch]:
        """Yield the epochs that make up the steps of this phase."""
        examples, steps = self.job.num_examples, self.phase_steps[phase]
        for positions, sizes in shuffled_epochs(examples, self.batch, self.merge_last, steps, self._generator(_ORDER)):
            moves = None
            if self.augment is not None:
                moves = self.augment.draw(len(positions), self._generator("augment"))
            yield positions, sizes, moves

    def batches(self, phase: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the positions of the examples of each step, and how each example is augmented."""
        for positions, sizes, moves in self.epochs(phase):
            batch_moves = (None,) * len(sizes) if moves is None else torch.split(moves, sizes)
            yield from zip(torch.split(positions, sizes), batch_moves, strict=True)

    def _generator(self, purpose: str) -> torch.Generator:
        if self._generators is None:
            self._generators = {}
        if purpose not in self._generators:
            self._generators[purpose] = draws.generator(self.job.seed, purpose, self.job.client, self.job.index)
        return self._generators[purpose]


def has_single_last(examples: int, batch: int) -> bool:
    """Return whether the last of several batches of an epoch has a single example."""
    return examples > batch and examples % batch == 1


def batches_per_epoch(examples: int, batch: int, merge: bool) -> int:
    """Return the number of batches in one epoch."""
    return -(-examples // batch) - (merge and has_single_last(examples, batch))


def batch_sizes(examples: int, batch: int, merge: bool) -> list[int]:
    """Return the batch sizes of one epoch; `merge` merges a last batch of one example into the batch before."""
    full = batches_per_epoch(examples, batch, merge) - 1
    return [batch] * full + [examples - full * batch]


def shuffled_epochs(
    examples: int, batch: int, merge: bool, steps: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield the order of the examples and the batch sizes of each epoch; the last epoch may end early.

    The order depends only on the generator, so every worker takes the same steps.
    """
    sizes = batch_sizes(examples, batch, merge)
    while steps > 0:
        used = sizes[:steps]
        steps -= len(used)
        yield torch.randperm(examples, generator=generator)[: sum(used)], used


# ---------------------------------------------------------------- optimizers


class Optimizer(Protocol):
    """A local optimizer, whose state lasts for one phase of one job."""

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        """Move w along -d in place; with leading client dimensions the rate may be a column."""
        ...


class LocalSGD:
    __slots__ = ("_momentum", "_velocity", "_weight_decay")

    def __init__(self, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._velocity: Tensor | None = None

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        if self._weight_decay:
            d = d.add(w, alpha=self._weight_decay)
        if self._momentum:
            if self._velocity is None:
                self._velocity = d.clone()  # as in torch: the first velocity is the direction itself
            else:
                self._velocity.mul_(self._momentum).add_(d)
            d = self._velocity
        if isinstance(lr, Tensor):
            w.addcmul_(d, lr, value=-1)
        else:
            w.add_(d, alpha=-lr)


class LocalAdam:
    __slots__ = ("_beta1", "_beta2", "_eps", "_mean", "_square", "_step", "_weight_decay")
    decoupled: ClassVar[bool] = False  # whether weight decay changes w directly instead of the gradient

    def __init__(
        self, weight_decay: float = 0.0, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        self._weight_decay = weight_decay
        self._beta1, self._beta2, self._eps = beta1, beta2, eps
        self._step = 0
        self._mean: Tensor | None = None
        self._square: Tensor | None = None

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        if self._mean is None or self._square is None:
            self._mean, self._square = d.new_zeros(d.shape), d.new_zeros(d.shape)
        self._step += 1
        if self._weight_decay and self.decoupled:
            w.mul_(1 - lr * self._weight_decay)
        elif self._weight_decay:
            d = d.add(w, alpha=self._weight_decay)
        self._mean.lerp_(d, 1 - self._beta1)
        self._square.mul_(self._beta2).addcmul_(d, d, value=1 - self._beta2)
        unbias = 1 - self._beta1**self._step
        unbias_square = sqrt(1 - self._beta2**self._step)
        deviation = self._square.sqrt().div_(unbias_square).add_(self._eps)
        if isinstance(lr, Tensor):
            w.addcdiv_(self._mean * lr, deviation, value=-1 / unbias)
        else:
            w.addcdiv_(self._mean, deviation, value=-lr / unbias)


class LocalAdamW(LocalAdam):
    __slots__ = ()
    decoupled: ClassVar[bool] = True


# ---------------------------------------------------------------- the loop


def make_local_job(
    job: Job,
    layout: Layout,
    lr: Rate,
    probe: Callable[[Tensor], Tensor] | None = None,
    features: Features | None = None,
) -> LocalJob:
    """Build the view of a job that its rule receives; missing memory is zero."""
    rule = job.work.rule or PLAIN_RULE
    start = layout.trainable(job.base)
    memory = {name: job.memory.get(name, torch.zeros_like(start)) for name in rule.memory}
    return LocalJob(job.base, start, layout, lr, job.work.extras, memory, probe, features)


def descend(
    rule: LocalRule,
    job: LocalJob,
    phases: Iterable[Phase],
    w: Tensor,
    batches: Callable[[Phase], Iterable[Gradient]],
    fresh: Callable[[], Optimizer],
) -> tuple[int, Any]:
    """Train w in place through all phases, each with a new optimizer; return (steps taken, the rule's carry)."""
    carry, steps = rule.begin(job), 0
    for phase in phases:
        gradients = ((grad, None) for grad in batches(phase))
        taken, carry = run_phase(
            rule, job, phase, job.lr if phase.lr is None else phase.lr, w, gradients, fresh(), carry
        )
        steps += taken
    return steps, carry


def run_phase(
    rule: LocalRule,
    job: LocalJob,
    phase: Phase,
    lr: Rate,
    w: Tensor,
    steps: Iterable[tuple[Gradient, Tensor | None]],
    optimizer: Optimizer,
    carry: Any,
) -> tuple[int, Any]:
    """Train w in place through one phase, for one client or a stack of clients; return (steps taken, carry).

    In a stack the rate may be a column. Each gradient comes with a boolean column of the clients it moves (None: all).
    Clients that have finished keep their w and their carry.
    """
    frozen = None if phase.slices is None else ~_movable_entries(job, phase.slices)
    taken = 0
    for grad, active in steps:
        before = None if frozen is None and active is None else w.clone()
        d, after = rule.direction(job, w, grad, carry)
        optimizer.step(w, d, lr)
        if before is not None and frozen is not None:
            w.copy_(torch.where(frozen, before, w))
        if before is not None and active is not None:
            w.copy_(torch.where(active, w, before))
            after = _merge_carry(active, after, carry)
        carry = after
        taken += 1
    return taken, carry


def _merge_carry(active: Tensor, new: Any, old: Any) -> Any:
    """Return the new carry for active clients and the old one for the others."""

    def merge(after: Any, before: Any) -> Any:
        if not isinstance(after, Tensor):
            return after
        return torch.where(active.view(-1, *(1,) * (after.dim() - 1)), after, before)

    return tree_map(merge, new, old)


def _movable_entries(job: LocalJob, names: tuple[str, ...]) -> Tensor:
    """Return a mask of the trainable entries that belong to the named slices."""
    known = [s.name for s in job.layout.of_kind("param")]
    for name in names:
        if name not in known:
            raise unknown_name("slice", name, known)
    parts = [torch.full((s.stop - s.start,), s.name in names) for s in job.layout.of_kind("param")]
    return torch.cat(parts).to(job.start.device)


# ---------------------------------------------------------------- global random generators


_lock = threading.RLock()


@contextmanager
def exclusive_generators() -> Iterator[None]:
    """Give the current thread exclusive use of the global generators."""
    with _lock:
        yield


def _renew_lock() -> None:
    """Replace the lock in a forked process, in which the thread that held it does not exist."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def device_generators(device: torch.device) -> list[torch.Generator]:
    """Return the global generators that layers on this device draw from."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators


def get_states(generators: Sequence[torch.Generator]) -> list[Tensor]:
    return [g.get_state() for g in generators]


def set_states(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    for g, state in zip(generators, states, strict=True):
        g.set_state(state)


@contextmanager
def seeded(generators: Sequence[torch.Generator], seed: int) -> Iterator[None]:
    """Seed the generators inside the context and restore them afterwards."""
    if len(generators) > 1 and torch.cuda.is_current_stream_capturing():
        yield  # generators cannot be set during the capture of a graph, which draws no random numbers
        return
    with exclusive_generators():
        # torch.manual_seed would also reseed all other devices
        states = get_states(generators)
        for g in generators:
            g.manual_seed(seed)
        try:
            yield
        finally:
            set_states(generators, states)
