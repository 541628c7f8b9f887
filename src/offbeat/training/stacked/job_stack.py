"""One stack of jobs: each row is one client, all of them take their steps together.

`gather` has the examples of a step, `kernel` its gradient, `core.jobs.stretch` the descent. Clients that are done stay
as they are. What a rule does once a job (`begin`, `end`) is done client by client: it may look at the client's data.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from offbeat.core.jobs import PLAIN, Job, Result, carry_of, column, handed_back, stacked_carry, stacked_job, stretch
from offbeat.core.protocol import LocalRule
from offbeat.training.dropout import step_keys
from offbeat.training.rule_hooks import Asked
from offbeat.training.stacked.compiled_linear import Compiled
from offbeat.training.stacked.dense_chain import Chain
from offbeat.training.stacked.stack_batches import Group, Room, steps
from offbeat.training.stacked.stack_gradient import ClosedForm, Kernel, Mapped
from offbeat.training.torch_generators import generators
from offbeat.training.trainer import Trainer


class Stack:
    """One stack of jobs. Its rule is asked job by job and may draw then: when this is made, and for the `results`;
    between them `descend` is all of them at once, and draws nothing.
    """

    def __init__(
        self,
        trainer: Trainer,
        jobs: list[Job],
        model: Chain | nn.Module,
        rooms: list[Room],
        loop: Compiled | None = None,  # that takes all steps of this rule
    ) -> None:
        self._trainer, self._layout, self._rooms = trainer, trainer.binding.layout, rooms
        sources = generators(trainer.binding.vector.device)
        self._sent, self._asked = jobs, [Asked(trainer, job, sources) for job in jobs]
        self._rule: LocalRule = jobs[0].work.rule or PLAIN
        self._loop = loop
        self._plans = [one.plan for one in self._asked]
        self._job = stacked_job([one.local for one in self._asked])
        self._carry = stacked_carry([one.carry for one in self._asked])
        for one in self._asked:
            one.carry = None  # it may be as large as a model, and is in the stack's now
        self._vectors = self._job.base.clone()
        self.w = self._layout.trainable(self._vectors)  # a view: params come first
        self.kernel: Kernel
        if isinstance(model, Chain):
            self.kernel, self._mapped = ClosedForm(model), None
        else:
            self.kernel = self._mapped = Mapped(model, self._layout, trainer.task, self._rule, self._job)
            self._mapped.buffers = trainer.buffers(self._vectors)

    def descend(self) -> None:
        if self._loop is not None:
            paces = [(plan.rate(0), plan.steps) for plan in self._plans]
            self._loop.descend([plan.job for plan in self._plans], paces, self._vectors.unbind(0), self._rule)
            return
        with torch.enable_grad(), self.kernel.serve():
            for number, phase in enumerate(self._plans[0].phases):
                lr = column([plan.rate(number) for plan in self._plans], self.w)
                taken, optimizer = self._steps(number), self._trainer.training.fresh()
                _, self._carry = stretch(self._rule, self._job, phase, lr, self.w, taken, optimizer, self._carry)
        if self._mapped is not None:
            self._trainer.write_buffers(self._vectors, self._mapped.buffers)

    def results(self) -> list[Result]:
        return [self._result(i) for i in range(len(self._asked))]

    def _result(self, i: int) -> Result:
        sent, one, local = self._sent[i], self._asked[i], self._vectors[i].clone()  # a row would keep the whole stack
        result = one.result(local, carry_of(self._carry, i))
        return handed_back(sent, result, self._layout) if self._trainer.training.bn == "local" else result

    # ------------------------------------------------------------ steps

    def _steps(self, phase: int) -> Iterator[tuple[StackGradient, Tensor | None]]:
        """The gradient of each step, and which clients it moves; None: all of them."""
        device = self.w.device
        noise = torch.tensor([plan.noise for plan in self._plans], device=device)
        done = torch.tensor([sum(plan.counts[:phase]) for plan in self._plans], device=device)
        counts = [plan.counts[phase] for plan in self._plans]
        for step, groups in enumerate(steps(self._trainer.data, self._plans, phase, self.kernel.pads, self._rooms)):
            keys = step_keys(noise, done + step) if self.kernel.draws else noise
            active = None
            if step >= min(counts):
                active = torch.tensor([count > step for count in counts], device=device)[:, None]
            yield StackGradient(self, groups, keys), active


class StackGradient:
    """grad(points) of one step of a stack; rows that are done have no gradient."""

    def __init__(self, stack: Stack, groups: list[Group], keys: Tensor) -> None:
        self._stack, self._groups, self._keys = stack, groups, keys
        self._first = True

    def __call__(self, points: Tensor) -> Tensor:
        w, kernel = self._stack.w, self._stack.kernel
        moves = self._first and points.data_ptr() == w.data_ptr() and points.shape == w.shape
        self._first = self._first and not moves
        out: Tensor | None = None
        for group in self._groups:
            grad = kernel.gradient(points, group, self._keys, moves)
            if group.rows is None:
                return grad
            out = torch.zeros_like(points) if out is None else out
            out.index_copy_(0, group.rows, grad)
        assert out is not None
        return out
