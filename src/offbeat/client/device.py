"""Stacks of clients trained by programs that are recorded once: what a GPU needs to be kept busy.

Jobs of one rule are put into a program of the next size up; programs are kept. Whatever a program cannot do (models
with BatchNorm or layers of their own, losses that are no mean over examples, rules with phases) is trained as stacks
are elsewhere, and that is said once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from offbeat.client.batches import needs_two
from offbeat.client.data import ClientData
from offbeat.client.gradient import overrides
from offbeat.client.layers import NotStacked, stacked
from offbeat.client.plan import Plan
from offbeat.client.program import CannotRecord, Losses, Program, Steps
from offbeat.client.stack import StackTrainer, alike, named
from offbeat.client.task import Classification, Regression, Task
from offbeat.client.training import Trainer
from offbeat.core.jobs import PLAIN, Job, Result, carry_of
from offbeat.core.protocol import LocalRule

log = logging.getLogger("offbeat")

MOST = 1024  # clients in a stack
KEPT = 16  # programs


class DeviceTrainer:
    """train(jobs) -> results, in order."""

    def __init__(self, trainer: Trainer, most: int = MOST) -> None:
        self._trainer, self._most = trainer, most
        self._others = StackTrainer(trainer)
        self._programs: dict[Any, Program] = {}
        self._refused: set[Any] = set()  # rules that cannot be recorded
        self._examples = Examples(trainer.data)
        self._form = self._formed()

    def _formed(self) -> tuple[Any, Losses] | None:
        try:
            if needs_two(self._trainer.binding.module):
                raise NotStacked("BatchNorm sees all examples of a batch")
            if not self._trainer.binding.layout.plain:
                raise NotStacked("its buffers change as it trains")
            if self._trainer.training.augment is not None:
                raise NotStacked("pictures are augmented")
            return stacked(self._trainer.binding.module), losses(self._trainer.task)
        except NotStacked as why:
            log.warning("steps are not recorded as one program: %s", why)
            return None

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        found: dict[int, Result] = {}
        for group in alike(jobs):
            rule = group[0].work.rule or PLAIN
            plain = self._form is not None and rule.stacks and not overrides(rule, "loss")
            phases = rule.phases(group[0].work)
            if not plain or len(phases) != 1 or phases[0].slices is not None or named(rule) in self._refused:
                results = self._others(group)
            else:
                results = self._recorded(rule, group)
            found |= {result.ticket: result for result in results}
        return [found[job.ticket] for job in jobs]

    def _recorded(self, rule: LocalRule, jobs: list[Job]) -> list[Result]:
        results: list[Result] = []
        while jobs:
            some, jobs = jobs[: self._most], jobs[self._most :]
            try:
                results += self._train(rule, some)
            except torch.OutOfMemoryError:
                self._programs.clear()
                torch.cuda.empty_cache()
                if len(some) == 1:
                    raise
                self._most = (len(some) + 1) // 2
                log.warning("no memory for stacks of %d clients: %d are trained at a time", len(some), self._most)
                jobs = some + jobs
            except CannotRecord as why:
                self._refused.add(named(rule))
                log.warning("steps of %s are not recorded: %s", type(rule).__name__, why)
                results += self._others(some)
        return results

    def _train(self, rule: LocalRule, jobs: list[Job]) -> list[Result]:
        trainer = self._trainer
        plans = [trainer.plan(job) for job in jobs]
        batch = max(min(plan.batch, plan.job.num_examples) for plan in plans)
        batch = min(1 << (batch - 1).bit_length(), plans[0].batch)  # few sizes, few programs
        local = [trainer.local_job(job, job, plan) for job, plan in zip(jobs, plans, strict=True)]
        program = self._program(rule, len(jobs), batch, local[0])
        chosen = [self._examples.of(plan, program.batch) for plan in plans]
        carries = [rule.begin(job) for job in local]
        w, carry = program.run(local, carries, [plan.rate(0) for plan in plans], [plan.noise for plan in plans], chosen)
        results = []
        for i, (job, plan) in enumerate(zip(jobs, plans, strict=True)):
            end = w[i].clone()  # of its own: a row would keep the whole stack alive
            extras, memory = rule.end(local[i], end, carry_of(carry, i))
            results.append(Result(job.ticket, end, job.num_examples, plan.steps, extras, memory))
        return results

    def _program(self, rule: LocalRule, clients: int, batch: int, like: Any) -> Program:
        size = min(rounded(clients), self._most)
        shapes = tuple((name, tuple(t.shape)) for name, t in (*like.extras.items(), *like.memory.items()))
        key = named(rule), size, batch, shapes
        program = self._programs.pop(key, None)
        if program is None:
            assert self._form is not None
            forward, each = self._form
            trainer = self._trainer
            program = Program(
                forward,
                each,
                self._examples.pair,
                trainer.binding.layout,
                trainer.training,
                rule,
                size,
                batch,
                trainer.binding.w.dtype,
            )
        self._programs[key] = program  # the newest last
        if len(self._programs) > KEPT:
            del self._programs[next(iter(self._programs))]
        return program


def rounded(clients: int) -> int:
    """The next of a few sizes, an eighth more at most: so that few programs do for stacks of every size."""
    unit = 1 << max(0, clients.bit_length() - 4)
    return -(-clients // unit) * unit


class Examples:
    """All examples of all clients in one place on the device, and where each client's are."""

    def __init__(self, data: ClientData) -> None:
        self.pair, self._rows = data.in_one_place()

    def of(self, plan: Plan, batch: int) -> Steps:
        """The steps of a plan of one phase."""
        own = self._rows(plan.job.client)
        chosen, sizes = np.zeros((plan.steps, batch), dtype=np.int64), np.zeros(plan.steps, dtype=np.int64)
        step = 0
        for positions, many, _ in plan.epochs(0):
            rows = own.index_select(0, positions).numpy()
            whole = len(rows) // batch if many[0] == batch else 0
            chosen[step : step + whole] = rows[: whole * batch].reshape(whole, batch)
            at = whole * batch
            for i in range(whole, len(many)):
                chosen[step + i, : many[i]] = rows[at : at + many[i]]
                at += many[i]
            sizes[step : step + len(many)] = many
            step += len(many)
        return chosen, sizes


def losses(task: Task) -> Losses:
    """The loss of single examples, whose mean over a batch is the task's."""
    if type(task) is Classification and task.criterion is None:
        return lambda outputs, y: _over_places(cross_entropy(outputs, y, reduction="none"))
    if type(task) is Regression and task.criterion is None:
        return lambda outputs, y: _over_places(mse_loss(outputs.reshape(y.shape), y, reduction="none"))
    raise NotStacked(f"the loss of {type(task).__name__} is not known to be a mean over examples")


def _over_places(each: Tensor) -> Tensor:
    return each if each.dim() == 1 else each.flatten(1).mean(1)
