"""Selection of the kernel that trains jobs: stacks of clients in one program, or one client at a time.

The kernels are listed in the order of preference. Each says why it cannot train jobs of a rule, and the first one that
can is used. If a stack fails although its jobs alone succeed, the next kernel trains them from then on, with one
warning.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Protocol

import torch

from offbeat.core.errors import describe_error
from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.training.rule_hooks import rule_key, try_call
from offbeat.training.stacked.dense_kernel import DenseKernel
from offbeat.training.stacked.traced_kernel import TracedKernel
from offbeat.training.trainer import Trainer

log = logging.getLogger("offbeat")

MAX_STACK_BYTES = 2**28  # approximate memory of a stack
SAMPLED_CLIENTS = 64  # clients that represent all clients
MIN_PRODUCTS_PER_PROCESS = 2**23  # products of a weight and an example for which another process is worth its overhead
PER_CLIENT = "per client"
ALONE_WARNING = "clients are trained one at a time: their steps cannot be stacked (%s)"
_VECTORS = 10  # vectors of a client in a stack: base, start, w, its gradient, those of the optimizer and the rule
_COPIES = 16  # copies of a client's batch that the activations of a model take, about


class Kernel(Protocol):
    """Trains stacks of jobs with the same rule."""

    name: str

    def why_not(self, rule: LocalRule) -> str | None:
        """Return why this kernel cannot train jobs of a rule, or None."""
        ...

    def refuse(self, rule: LocalRule, reason: str) -> None:
        """Do not try jobs of this rule again."""
        ...

    def stacks(self, jobs: Sequence[Job], limit: int) -> list[list[Job]]:
        """Split jobs of one rule into stacks of at most `limit` jobs."""
        ...

    def close(self) -> None:
        """Release graphs and memory."""
        ...

    def train(self, jobs: Sequence[Job]) -> list[Result]:
        """Train a stack of jobs; the results equal those of the trainer within rounding."""
        ...


class Dispatcher:
    """Train many jobs with the best kernel: `train_many(jobs)` returns results in order.

    `max_jobs`, the limit of a stack, depends on model and training settings but not on the machine.
    """

    def __init__(self, trainer: Trainer, memory: int = MAX_STACK_BYTES) -> None:
        self._trainer = trainer
        self._traced = TracedKernel(trainer)
        self._kernels: tuple[Kernel, ...] = (DenseKernel(trainer), self._traced)
        binding = trainer.binding
        values = _VECTORS * binding.layout.size + _COPIES * trainer.training.batch * trainer.data.input_size
        self.max_jobs = max(1, memory // (binding.vector.element_size() * values))
        self._limit = self.max_jobs  # smaller if memory was insufficient
        self._logged: set[Hashable] = set()  # rules whose choice of a kernel is in the log
        self._warned: set[str] = set()

    def explain(self, rule: LocalRule | None = None) -> list[tuple[str, str | None]]:
        """Return the name of each kernel and why it is not used for jobs of this rule; None for the one that is."""
        reasons: list[tuple[str, str | None]] = []
        for kernel in self._kernels:
            reasons.append((kernel.name, kernel.why_not(rule or PLAIN_RULE)))
            if reasons[-1][1] is None:
                return reasons
        return [*reasons, (PER_CLIENT, None)]

    def useful_cores(self, cores: int) -> int:
        """Return how many of these cores to use; depends on model and data but not on the speed of the machine."""
        trainer, data = self._trainer, self._trainer.data
        if trainer.chain is None:
            return cores
        sample = data.sample(SAMPLED_CLIENTS)
        steps = sum(trainer.count_steps(client, LocalWork(), data.size(client)) for client in sample) / len(sample)
        products = steps * trainer.training.batch * trainer.binding.layout.size
        return 1 if products < MIN_PRODUCTS_PER_PROCESS else cores

    def train_many(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """Return a result or an exception for each job; a failing job does not affect the others."""
        answers: dict[int, Result | Exception] = {}
        for group in group_by_work(jobs):
            answers |= self._train_group(group)
        return [answers[job.ticket] for job in jobs]

    def close(self) -> None:
        """Release graphs and memory."""
        for kernel in self._kernels:
            kernel.close()

    def _train_group(self, jobs: list[Job]) -> dict[int, Result | Exception]:
        """Train jobs with equal rules; return the answers by ticket."""
        rule = jobs[0].work.rule or PLAIN_RULE
        kernel = next((kernel for kernel in self._kernels if kernel.why_not(rule) is None), None)
        if rule_key(rule) not in self._logged:
            self._logged.add(rule_key(rule))
            choice = ", ".join(f"{name}: {reason or 'used'}" for name, reason in self.explain(rule))
            log.info("training of jobs with %s: %s", type(rule).__name__, choice)
            if kernel is None and (failure := self._traced.failure(rule)) is not None:
                self._warn_once(ALONE_WARNING, failure)
        stacks = [[job] for job in jobs] if kernel is None else kernel.stacks(jobs, self._limit)
        answers: dict[int, Result | Exception] = {}
        for stack in stacks:
            stacks_well = kernel is not None and len(stack) > 1 and kernel.why_not(rule) is None
            trained = self._train_stack(kernel, rule, stack) if kernel and stacks_well else self._train_alone(stack)
            answers |= zip((job.ticket for job in stack), trained, strict=True)
        return answers

    def _train_stack(self, kernel: Kernel, rule: LocalRule, jobs: list[Job]) -> list[Result | Exception]:
        """Train a stack; if it fails, train its jobs in smaller stacks or alone."""
        half = len(jobs) // 2
        try:
            return [*kernel.train(jobs)]
        except (MemoryError, torch.OutOfMemoryError):
            failure = None
        except Exception as error:
            # not the error itself, which holds the memory of the stack
            failure = None if "allocate memory" in str(error) else describe_error(error)
        if failure is None and half == 0:
            return self._train_alone(jobs)
        if failure is None:
            self._limit = half
            self._warn_once("not enough memory for stacks of %d clients: half as many are trained at once", len(jobs))
            return [*self._train_stack(kernel, rule, jobs[:half]), *self._train_stack(kernel, rule, jobs[half:])]
        alone = self._train_alone(jobs)
        if not any(isinstance(answer, Exception) for answer in alone):  # a job that fails alone reports it itself
            kernel.refuse(rule, failure)
            self._warn_once(ALONE_WARNING, failure)
        return alone

    def _train_alone(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """Train jobs one at a time."""
        return [try_call(self._trainer, job) for job in jobs]

    def _warn_once(self, message: str, value: object) -> None:
        """Log a warning unless it was logged before."""
        if message % value not in self._warned:
            self._warned.add(message % value)
            log.warning(message, value)


def group_by_work(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group jobs that can be stacked: equal rules, numbers of phases, and names and shapes of extras."""
    groups: dict[Hashable, list[Job]] = {}
    for job in jobs:
        work, key = job.work, None  # None: work without rule and extras
        if work.rule is not None or work.extras:
            extras = tuple((name, tuple(extra.shape)) for name, extra in sorted(work.extras.items()))
            slices = tuple(phase.slices for phase in (work.rule or PLAIN_RULE).phases(work))
            key = rule_key(work.rule), slices, extras
        groups.setdefault(key, []).append(job)
    return list(groups.values())
