"""Train one stack of jobs: each row is a client, and all rows take their steps together.

Finished clients stay unchanged. A rule's `begin()` and `end()` are called client by client, because they may access the
client's data.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from offbeat.core.jobs import Job, Result, extract_client_statistics, select_carry, stack_carries, stack_jobs, to_column
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalRule
from offbeat.training.descent import device_generators, run_phase
from offbeat.training.regularization import step_keys
from offbeat.training.rule_hooks import RuleHooks
from offbeat.training.stacked.compiled_linear import CompiledLinear
from offbeat.training.stacked.dense_chain import DenseChain
from offbeat.training.stacked.stack_batches import BatchGroup, ReusableBuffer, stack_steps
from offbeat.training.stacked.stack_gradient import DenseKernel, GradientKernel, VmapKernel
from offbeat.training.trainer import Trainer


class JobStack:
    """A stack of jobs with the same rule.

    The rule's hooks, which may draw random numbers, are called on creation and in `results`; `descend` draws none.
    """

    def __init__(
        self,
        trainer: Trainer,
        jobs: list[Job],
        model: DenseChain | nn.Module,
        buffers: list[ReusableBuffer],
        loop: CompiledLinear | None = None,  # that takes all steps of this rule
    ) -> None:
        self._trainer, self._layout, self._buffers = trainer, trainer.binding.layout, buffers
        sources = device_generators(trainer.binding.vector.device)
        self._sent, self._hooks = jobs, [RuleHooks(trainer, job, sources) for job in jobs]
        self._rule: LocalRule = jobs[0].work.rule or PLAIN_RULE
        self._loop = loop
        self._plans = [hooks.plan for hooks in self._hooks]
        self._job = stack_jobs([hooks.local_job for hooks in self._hooks])
        self._carry = stack_carries([hooks.carry for hooks in self._hooks])
        for hooks in self._hooks:
            hooks.carry = None  # freed: it may be as large as a model, and the stack has a copy
        self._vectors = self._job.base.clone()
        self.w = self._layout.trainable(self._vectors)  # a view: params come first
        self.kernel: GradientKernel
        if isinstance(model, DenseChain):
            self.kernel, self._mapped = DenseKernel(model), None
        else:
            self.kernel = self._mapped = VmapKernel(model, self._layout, trainer.task, self._rule, self._job)
            self._mapped.buffers = trainer.stack_buffers(self._vectors)

    def descend(self) -> None:
        if self._loop is not None:
            paces = [(plan.learning_rate(0), plan.steps) for plan in self._plans]
            self._loop.descend([plan.job for plan in self._plans], paces, self._vectors.unbind(0), self._rule)
            return
        with torch.enable_grad(), self.kernel.install():
            for number, phase in enumerate(self._plans[0].phases):
                lr = to_column([plan.learning_rate(number) for plan in self._plans], self.w)
                taken, optimizer = self._steps(number), self._trainer.training.make_optimizer()
                _, self._carry = run_phase(self._rule, self._job, phase, lr, self.w, taken, optimizer, self._carry)
        if self._mapped is not None:
            self._trainer.write_stack_buffers(self._vectors, self._mapped.buffers)

    def results(self) -> list[Result]:
        return [self._result(i) for i in range(len(self._hooks))]

    def _result(self, i: int) -> Result:
        sent, hooks, local = self._sent[i], self._hooks[i], self._vectors[i].clone()  # a row would keep the whole stack
        result = hooks.result(local, select_carry(self._carry, i))
        return extract_client_statistics(sent, result, self._layout) if self._trainer.training.bn == "local" else result

    # ------------------------------------------------------------ steps

    def _steps(self, phase: int) -> Iterator[tuple[StackBatchGradient, Tensor | None]]:
        """Yield the gradient of each step and the mask of the clients that take it; None: all clients."""
        device = self.w.device
        noise = torch.tensor([plan.noise_seed for plan in self._plans], device=device)
        done = torch.tensor([sum(plan.phase_steps[:phase]) for plan in self._plans], device=device)
        counts = [plan.phase_steps[phase] for plan in self._plans]
        for step, groups in enumerate(
            stack_steps(self._trainer.data, self._plans, phase, self.kernel.pads, self._buffers)
        ):
            keys = step_keys(noise, done + step) if self.kernel.draws else noise
            active = None
            if step >= min(counts):
                active = torch.tensor([count > step for count in counts], device=device)[:, None]
            yield StackBatchGradient(self, groups, keys), active


class StackBatchGradient:
    """The function `grad(points)` for one step of a stack; the gradient of finished rows is zero."""

    def __init__(self, stack: JobStack, groups: list[BatchGroup], keys: Tensor) -> None:
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
