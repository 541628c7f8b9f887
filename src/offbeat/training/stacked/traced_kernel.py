"""Train stacks of any module: one step of all clients is traced as a graph of tensor operations.

A graph belongs to a run, because code of the user may have changed before the next one. A step takes the first clients
of a stack, in a few sizes, so that finished clients cost little and few graphs suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from offbeat.core.errors import describe_error
from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.training.gradient import device_generators, overrides, seeded
from offbeat.training.rule_hooks import rule_key
from offbeat.training.stacked.job_stack import Batch, JobStack
from offbeat.training.stacked.stack_check import (
    Stackability,
    difference_from_single_job,
    max_error,
    try_stack,
    unknown_tokens,
)
from offbeat.training.stacked.training_step import StackInputs, StackState, TrainingStep
from offbeat.training.trainer import Trainer

MIN_CPU_JOBS = 4  # smaller stacks are not faster than single jobs on a CPU
MAX_CPU_PARAMETERS = 2**14  # on a CPU, stacks are faster if calls take longer than arithmetic: for small models and
MAX_CPU_BATCH_VALUES = 2**16  # batches with at most this many input values

_TENSOR = object()
Graph = Callable[..., list[Tensor]]  # (state, inputs, frozen parameters, step number, batch) -> new state


class CannotTrace(Exception):
    """Raised with the reason if a step cannot be traced."""


class TracedKernel:
    """Train stacks of any module whose step can be traced."""

    name = "traced"

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.graphs: dict[Hashable, Graph] = {}
        trained = {s.name for s in trainer.binding.layout.of_kind("param")}
        parameters = trainer.binding.module.named_parameters()
        self.frozen = {name: p.detach() for name, p in parameters if name not in trained}
        self._failures: dict[Hashable, str] = {}  # rule -> why its step cannot be traced
        self._min_jobs = MIN_CPU_JOBS if trainer.data.device.type == "cpu" else 2

    def why_not(self, rule: LocalRule) -> str | None:
        """Return why this kernel cannot train jobs of this rule, or None if it can be tried."""
        trainer = self.trainer
        if not rule.stacks:
            return f"{type(rule).__name__} sets stacks = False"
        if (reason := unknown_tokens(trainer)) is not None:
            return reason
        if trainer.has_batch_norm and trainer.training.batch == 1:
            return "a batch of one example may have no statistics"
        reason = why_alone_on_cpu(trainer)
        if reason is None and (key := rule_key(rule)) not in self._failures and self._stackability.failure is not None:
            self._failures[key] = self._stackability.failure
        return reason or self.failure(rule)

    def failure(self, rule: LocalRule) -> str | None:
        """Return why stacking jobs of this rule was tried and failed, or None."""
        return self._failures.get(rule_key(rule))

    def refuse(self, rule: LocalRule, reason: str) -> None:
        """Do not try jobs of this rule again."""
        self._failures[rule_key(rule)] = reason

    def close(self) -> None:
        """Drop all graphs."""
        self.graphs.clear()

    def stacks(self, jobs: Sequence[Job], limit: int) -> list[list[Job]]:
        """Split jobs of one rule into stacks of 4, 8, 16, … jobs with similar numbers of steps, and single jobs."""
        pads = self._stackability.pads and not overrides(jobs[0].work.rule or PLAIN_RULE, "loss")
        groups: dict[int, list[Job]] = {}
        for job in sorted(jobs, key=self.trainer.total_steps, reverse=True):
            groups.setdefault(0 if pads else job.num_examples, []).append(job)
        stacks = []
        for group in groups.values():
            while group:
                size = 1 << min(limit, len(group)).bit_length() - 1
                one_example = self.trainer.has_batch_norm and min(job.num_examples for job in group[:size]) == 1
                size = 1 if size < self._min_jobs or one_example else size  # one example may have no statistics
                stacks.append(group[:size])
                group = group[size:]
        return stacks

    def train(self, jobs: Sequence[Job]) -> list[Result]:
        """Train jobs of one rule together; raise CannotTrace if a step cannot be traced."""
        trainer = self.trainer
        trainer.binding.module.train()
        with seeded(device_generators(trainer.data.device), 0):  # a step may draw before it is refused
            stack = JobStack(trainer, jobs)
            vectors, layout = stack.job.base.clone(), trainer.binding.layout
            buffers, carry, w = trainer.stack_buffers(vectors), stack.carry, layout.trainable(vectors)
            for number in range(len(stack.plans[0].phases)):
                moments = [torch.zeros_like(w) for _ in range(trainer.training.make_optimizer().moment_count)]
                state = _PhaseRun(self, stack, number).run(StackState(w, moments, buffers, carry))
                w, buffers, carry = state.w, state.buffers, state.carry
            stack.carry = carry
            vectors = layout.with_trainable(vectors, w)
            trainer.write_stack_buffers(vectors, buffers)
            return stack.results(vectors)

    @cached_property
    def _stackability(self) -> Stackability:
        """The result of trying a step, found when it is first needed."""
        return try_stack(self.trainer)


class _PhaseRun:
    """The steps of a stack in one phase."""

    def __init__(self, kernel: TracedKernel, stack: JobStack, phase: int) -> None:
        self._kernel, self._stack, self._phase = kernel, stack, phase
        job, plans = stack.job, stack.plans
        device = job.base.device
        fields = {"base": job.base, "start": job.start, "lr": job.lr, "extras": job.extras, "memory": job.memory}
        noise = torch.tensor([plan.noise_seed for plan in plans], device=device)
        done = torch.tensor([sum(plan.phase_steps[:phase]) for plan in plans], device=device)
        self._inputs, self._input_spec = tree_flatten((_plain(fields), stack.learning_rates(phase), noise, done))
        self._frozen = list(kernel.frozen.values())
        self._others: list[object] = []  # the leaves of the state that are not tensors, and _TENSOR for the others
        self._spec: TreeSpec | None = None

    def run(self, state: StackState) -> StackState:
        """Take all steps and return the last state."""
        leaves, inputs = self._flatten(state), self._inputs
        finished: list[list[Tensor]] = []  # the last states of clients that were left out
        graphs: dict[Hashable, Graph] = {}
        batches = self._stack.batches(self._phase)
        for number, batch in enumerate(batches.steps(round_up_clients), start=1):
            clients = len(batch.sizes)
            if clients < len(leaves[0]):
                finished.append([leaf[clients:] for leaf in leaves])
                leaves, inputs = [leaf[:clients] for leaf in leaves], [leaf[:clients] for leaf in inputs]
            arguments = [*leaves, *inputs, *self._frozen, torch.tensor(number), batch.x, batch.y, batch.sizes]
            key = clients, batch.x.shape[1], batch.padded
            if key not in graphs:
                graphs[key] = self._graph(batch, arguments)
            leaves = graphs[key](*arguments)
        for parts in reversed(finished):
            leaves = [torch.cat(pair) for pair in zip(leaves, parts, strict=True)]
        return self._unflatten(leaves)

    def _graph(self, batch: Batch, arguments: list[Tensor]) -> Graph:
        """Return the graph of a step with these arguments."""
        stack, phase = self._stack, self._stack.plans[0].phases[self._phase]
        step = TrainingStep(stack.trainer, stack.rule, phase.slices, batch.padded)
        shapes = tuple((tuple(a.shape), a.dtype, a.device) for a in arguments)
        others = tuple(map(repr, self._others))
        key = rule_key(stack.rule), shapes, str(self._spec), str(self._input_spec), others, phase.slices, batch.padded

        def take_step(*values: Tensor) -> list[Tensor]:
            """Take a step as a function of tensors only."""
            return self._flatten(step(*self._arguments(list(values))))

        if key not in self._kernel.graphs:
            self._check(step, arguments)
            self._kernel.graphs[key] = trace(take_step, arguments)
        return self._kernel.graphs[key]

    def _check(self, step: TrainingStep, arguments: list[Tensor]) -> None:
        """Raise CannotTrace if the client with the largest batch differs from a single job."""
        stack, (state, inputs) = self._stack, self._arguments(arguments)
        i = int(inputs.sizes.argmax())
        try:
            job = stack.local_job(i)
            difference = difference_from_single_job(stack.trainer, stack.rule, job, step, state, inputs, i)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise CannotTrace(describe_error(error)) from error
        if difference > max_error(state.w.dtype):
            raise CannotTrace(f"results in a stack differ from those alone by {difference:.1e}")

    def _arguments(self, values: list[Tensor]) -> tuple[StackState, StackInputs]:
        """Return the state and the inputs of a step from the arguments of its graph."""
        assert self._spec is not None
        *values, number, x, y, sizes = values
        count = sum(other is _TENSOR for other in self._others)
        state, inputs = self._unflatten(values[:count]), values[count : count + len(self._inputs)]
        fields, lr, noise, done = tree_unflatten(inputs, self._input_spec)
        frozen = dict(zip(self._kernel.frozen, values[count + len(inputs) :], strict=True))
        job = LocalJob(layout=self._stack.job.layout, probe=self._stack.job.probe, **fields)
        return state, StackInputs(job, lr, noise, frozen, done + number - 1, number, x, y, sizes)

    def _flatten(self, state: StackState) -> list[Tensor]:
        """Return the tensors of a state; its other values must not change from step to step."""
        leaves, spec = tree_flatten((state.w, state.moments, state.buffers, state.carry))
        others = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if self._spec is None:
            self._spec, self._others = spec, others
        elif (spec, others) != (self._spec, self._others):
            raise CannotTrace("the carry of its rule changes its structure or counts in plain numbers")
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def _unflatten(self, tensors: list[Tensor]) -> StackState:
        """Return the state with these tensors."""
        assert self._spec is not None
        rest = iter(tensors)
        leaves = [next(rest) if other is _TENSOR else other for other in self._others]
        return StackState(*tree_unflatten(leaves, self._spec))


def trace(function: Callable[..., list[Tensor]], arguments: list[Tensor]) -> Graph:
    """Return the function as a graph of tensor operations."""
    try:
        graph = make_fx(function)(*arguments)
    except (CannotTrace, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise CannotTrace(describe_error(error)) from error
    random = {str(node.target) for node in graph.graph.nodes if _draws(node)}
    if random:
        raise CannotTrace(f"it draws random numbers at every step ({', '.join(sorted(random))})")
    return graph


def _draws(node: fx.Node) -> bool:
    """Return whether a node draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def round_up_clients(clients: int) -> int:
    """Round up to a power of two, so few graphs suffice."""
    return 1 << (clients - 1).bit_length()


def why_alone_on_cpu(trainer: Trainer) -> str | None:
    """Return why a stack is not faster than single jobs on a CPU, or None if it is or on another device."""
    if trainer.data.device.type != "cpu":
        return None
    if any(isinstance(m, nn.RNNBase) for m in trainer.binding.module.modules()):
        return "on a CPU, recurrent layers take longer to trace than to train"
    values = trainer.training.batch * trainer.data.input_size
    if trainer.binding.layout.num_params > MAX_CPU_PARAMETERS or values > MAX_CPU_BATCH_VALUES:
        return "on a CPU, steps of this size are as fast one client at a time"
    return None


def _plain(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields with dictionaries instead of other mappings, which are leaves for pytrees."""
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in fields.items()}
