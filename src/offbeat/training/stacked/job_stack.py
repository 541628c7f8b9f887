"""A stack of jobs with the same rule, whose clients take their steps together.

A rule's `begin()` and `end()` are called client by client, because they may access the client's data and draw random
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core.jobs import Job, Result, extract_client_statistics, select_carry, stack_carries, stack_jobs, to_column
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalJob
from offbeat.training.augmentation import CropFlip
from offbeat.training.client_data import ClientData, Pair
from offbeat.training.descent import Plan, batches_per_epoch
from offbeat.training.gradient import device_generators
from offbeat.training.rule_hooks import RuleHooks
from offbeat.training.stacked.batch_order import BatchRows, draw_batch_order
from offbeat.training.trainer import Trainer

MAX_ROW_NUMBERS = 2**20  # rows of examples that are looked up at once


class JobStack:
    """The jobs of a stack with their plans and the rule's carry, one row per client."""

    def __init__(self, trainer: Trainer, jobs: Sequence[Job]) -> None:
        self.trainer, self._jobs = trainer, jobs
        self._hooks = [RuleHooks(trainer, job, device_generators(trainer.data.device)) for job in jobs]
        self.plans: list[Plan] = [hooks.plan for hooks in self._hooks]
        self.rule = jobs[0].work.rule or PLAIN_RULE
        self.job = stack_jobs([hooks.local_job for hooks in self._hooks])
        self.carry = stack_carries([hooks.carry for hooks in self._hooks])
        for hooks in self._hooks:
            hooks.carry = None  # it may be as large as a model, and the stack has a copy

    def local_job(self, i: int) -> LocalJob:
        """Return the job of one client as its rule sees it."""
        return self._hooks[i].local_job

    def learning_rates(self, phase: int) -> Tensor:
        """Return the learning rates of a phase as a column."""
        return to_column([plan.learning_rate(phase) for plan in self.plans], self.job.start)

    def batches(self, phase: int) -> StackBatches:
        """Return the batches of a phase."""
        return StackBatches(self.trainer.data, self.plans, phase)

    def results(self, vectors: Tensor) -> list[Result]:
        """Call the rule's `end()` for each client and return the results, which share no memory with the stack."""
        results = []
        for i, (sent, hooks) in enumerate(zip(self._jobs, self._hooks, strict=True)):
            result = hooks.result(vectors[i].clone(), select_carry(self.carry, i))
            if self.trainer.training.bn == "local":
                result = extract_client_statistics(sent, result, self.trainer.binding.layout)
            results.append(result)
        return results


@dataclass
class Batch:
    """The examples of one step of the first clients of a stack."""

    x: Tensor  # (clients, examples, …)
    y: Tensor
    sizes: Tensor  # (clients,): examples that count; the others are padding; 0 for finished clients
    padded: bool  # whether a client that is not finished has padding
    finished: bool  # whether a client among them is finished


class StackBatches:
    """The batches of a stack in one phase.

    A batch leaves out the last clients of the stack if they are finished, so stacks are best sorted by numbers of
    steps, the largest first.
    """

    def __init__(self, data: ClientData, plans: Sequence[Plan], phase: int) -> None:
        index, first_epochs = data.index, [plan.first_epoch(phase) for plan in plans]
        jobs, steps = [plan.job for plan in plans], [plan.phase_steps[phase] for plan in plans]
        cut = plans[0].batch, plans[0].merge_last
        self._pair = index.pair
        self._order = draw_batch_order(jobs, steps, [index] * len(jobs), *cut, first_epochs)
        self._sizes = _batch_sizes(plans, phase)  # (steps, clients), 0 for finished clients
        self._augment: CropFlip | None = plans[0].augment
        if self._augment is not None:
            self._keys = torch.tensor([plan.augment_key for plan in plans], device=data.device)
            self._first_epochs = torch.tensor(first_epochs, device=data.device)
        self._buffers: dict[tuple[int, int], Pair] = {}  # (clients, width) -> memory that all steps share

    def steps(self, round_up: Callable[[int], int] = lambda clients: clients) -> Iterator[Batch]:
        """Yield the batches of all steps; each is overwritten by the next.

        Numbers of clients are rounded up by this function, at most to the size of the stack.
        """
        steps, clients = self._sizes.shape
        widths = self._sizes.max(axis=1)
        last_active = clients - (self._sizes[:, ::-1] > 0).argmax(axis=1)
        segment = max(1, MAX_ROW_NUMBERS // max(1, clients * int(widths.max(initial=1))))
        for first in range(0, steps, segment):
            some = min(segment, steps - first)
            batch_rows = self._order.batch_rows(first, some, int(widths[first : first + some].max()))
            for i in range(some):
                count, width = min(clients, round_up(int(last_active[first + i]))), int(widths[first + i])
                sizes = self._sizes[first + i, :count]
                x, y = self._gather(batch_rows.rows[i, :count, :width])
                if self._augment is not None:
                    x = self._augment(x.flatten(0, 1), self._moves(batch_rows, i, count, width)).view(x.shape)
                padded = bool(((sizes > 0) & (sizes < width)).any())
                yield Batch(x, y, batch_rows.sizes[i, :count], padded, not sizes.all())

    def _gather(self, rows: Tensor) -> Pair:
        """Copy the examples of these rows, (clients, width), into memory that is reused."""
        clients, width = rows.shape
        if (clients, width) not in self._buffers:
            x, y = (part.new_empty((rows.numel(), *part.shape[1:])) for part in self._pair)
            self._buffers[clients, width] = x, y
        x, y = (
            torch.index_select(source, 0, rows.reshape(-1), out=buffer).view(clients, width, *source.shape[1:])
            for source, buffer in zip(self._pair, self._buffers[clients, width], strict=True)
        )
        return x, y

    def _moves(self, batch_rows: BatchRows, step: int, count: int, width: int) -> Tensor:
        """Return the augmentation of the images of a step, (count * width, 3)."""
        assert self._augment is not None
        epochs = self._first_epochs[:count] + batch_rows.epochs[step, :count]
        return self._augment.draw(self._keys[:count], epochs, batch_rows.positions[step, :count, :width]).flatten(0, 1)


def _batch_sizes(plans: Sequence[Plan], phase: int) -> NDArray[np.int64]:
    """Return the batch size of each client at each step of a phase, 0 for finished clients."""
    counts = np.array([plan.job.num_examples for plan in plans])
    steps = np.array([plan.phase_steps[phase] for plan in plans])
    each = np.array([batches_per_epoch(int(count), plans[0].batch, plans[0].merge_last) for count in counts])
    step = np.arange(steps.max())[:, None]
    in_epoch = step % each
    sizes = np.where(in_epoch == each - 1, counts - in_epoch * plans[0].batch, plans[0].batch)
    return np.where(step < steps, sizes, 0)
