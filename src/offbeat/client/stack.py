"""Local training of many clients in one tensor program: the same plans and the same descent, on stacked vectors.

The gradient of a stack is one vmapped forward pass and one backward pass of the summed losses: clients share nothing,
so each row is that client's gradient. Batches of one size are computed together and never padded, so that neither
BatchNorm nor a loss that takes a mean sees anything but a client's own examples. Clients that are done stay as they
are.

What a rule does once a job (`begin`, `end`) is done client by client: it may look at the client's data. Models that
cannot be mapped (a kernel that draws by itself, control flow on values) and rules that say so train one by one, which
is said once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from offbeat.client.data import Pair
from offbeat.client.dropout import Masks, step_keys
from offbeat.client.gradient import head, overrides
from offbeat.client.plan import Plan
from offbeat.client.randomness import generators, restore, seeded, states
from offbeat.client.training import Trainer
from offbeat.core.errors import ProtocolError
from offbeat.core.jobs import PLAIN, Job, Result, carry_of, column, handed_back, stacked_carry, stacked_job, stretch
from offbeat.core.protocol import LocalJob, LocalRule

log = logging.getLogger("offbeat")

Buffers = dict[str, Tensor]


class StackTrainer:
    """train(jobs) -> results, in order. Equal to the trainer's own, one by one, within rounding."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._one_by_one: str | None = None  # why, once it is known

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        found: dict[int, Result] = {}
        for group in alike(jobs):
            found |= {result.ticket: result for result in self._train(group)}
        return [found[job.ticket] for job in jobs]

    def _train(self, jobs: list[Job]) -> list[Result]:
        rule = jobs[0].work.rule or PLAIN
        if self._one_by_one is not None or not rule.stacks or len(jobs) == 1:
            return [self._trainer(job) for job in jobs]
        try:
            return Stack(self._trainer, jobs).train()
        except (MemoryError, torch.OutOfMemoryError):
            half = len(jobs) // 2
            return [*self._train(jobs[:half]), *self._train(jobs[half:])]
        # an operation vmap cannot map; or a job that fails alone too, which then says so itself
        except Exception as error:
            results = [self._trainer(job) for job in jobs]
            self._one_by_one = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("clients are trained one by one: they cannot be stacked (%s)", self._one_by_one)
            return results


def alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that can be stacked: one rule, the same number of phases, extras of the same names and shapes."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        extras = tuple((name, tuple(extra.shape)) for name, extra in sorted(job.work.extras.items()))
        slices = tuple(phase.slices for phase in (job.work.rule or PLAIN).phases(job.work))
        groups.setdefault((named(job.work.rule), slices, extras), []).append(job)
    return list(groups.values())


def named(rule: LocalRule | None) -> Any:
    """Equal rules are one; a rule that cannot be hashed is only itself."""
    try:
        hash(rule)
    except TypeError:
        return id(rule)
    return rule


class Stack:
    """One stack of jobs, from its plans to its results."""

    def __init__(self, trainer: Trainer, jobs: list[Job]) -> None:
        binding = trainer.binding
        self._trainer, self._module, self._layout = trainer, binding.module, binding.layout
        self._sent, self._jobs = jobs, [trainer.own(job) for job in jobs]
        self._rule: LocalRule = jobs[0].work.rule or PLAIN
        self._plans = [trainer.plan(job) for job in self._jobs]
        self._vectors = torch.stack([job.base for job in self._jobs])
        self.w = self._layout.trainable(self._vectors)  # a view: params come first
        self._buffers = trainer.buffers(self._vectors)
        self._locals = [
            trainer.local_job(sent, job, plan) for sent, job, plan in zip(jobs, self._jobs, self._plans, strict=True)
        ]
        self._job = stacked_job(self._locals)
        self._noise = torch.tensor([plan.noise for plan in self._plans], device=self.w.device)
        self._masks = Masks(self._module)
        self._own_loss = overrides(self._rule, "loss")
        self._seen: Tensor | None = None  # what entered the head
        self._after: Buffers = {}  # the module's buffers after a pass: it may have replaced them
        self._sources = generators(self.w.device)

    def train(self) -> list[Result]:
        rule = self._rule
        self._module.train()
        with torch.enable_grad(), seeded(self._sources, 0), self._masks.serve(), self._remembering():
            begun = [self._begin(job, plan) for job, plan in zip(self._locals, self._plans, strict=True)]
            self._module.train()  # `begin` may have looked at features, in evaluation mode
            carry, before = stacked_carry([carry for carry, _ in begun]), states(self._sources)
            for number, phase in enumerate(self._plans[0].phases):
                lr, optimizer = (
                    column([plan.rate(number) for plan in self._plans], self.w),
                    self._trainer.training.fresh(),
                )
                _, carry = stretch(rule, self._job, phase, lr, self.w, self._steps(number), optimizer, carry)
            if not all(map(torch.equal, before, states(self._sources))):
                raise ProtocolError(
                    f"{rule!r} draws at every step: of a stack that is nobody's draw; let it say stacks = False"
                )
            self._trainer.write_buffers(self._vectors, self._buffers)
            return [self._result(i, carry_of(carry, i), begun[i][1]) for i in range(len(self._jobs))]

    def _begin(self, job: LocalJob, plan: Plan) -> tuple[Any, list[Tensor]]:
        """The rule's carry, and where its draws are then: what it draws comes from the job's own key."""
        with seeded(self._sources, plan.noise):
            return self._rule.begin(job), states(self._sources)

    def _result(self, i: int, carry: Any, drawn: list[Tensor]) -> Result:
        local = self._vectors[i].clone()  # of its own: a row would keep the whole stack alive
        restore(self._sources, drawn)
        extras, memory = self._rule.end(self._locals[i], local, carry)
        plan = self._plans[i]
        result = Result(plan.job.ticket, local, plan.job.num_examples, plan.steps, extras, memory)
        return handed_back(self._sent[i], result, self._layout) if self._trainer.training.bn == "local" else result

    # ------------------------------------------------------------ steps

    def _steps(self, phase: int) -> Iterator[tuple[StackGradient, Tensor | None]]:
        """The gradient of each step, and which clients it moves; None: all of them."""
        done = torch.tensor([sum(plan.counts[:phase]) for plan in self._plans])
        counts = torch.tensor([plan.counts[phase] for plan in self._plans])
        batches = [plan.batches(phase) for plan in self._plans]
        for step in range(int(counts.max())):
            active = counts > step
            keys = step_keys(self._noise, (done + step).to(self._noise.device))
            rows = active.nonzero().flatten().tolist()
            groups = self._gather({i: next(batches[i]) for i in rows})
            yield StackGradient(self, groups, keys), None if bool(active.all()) else active.to(self.w.device)[:, None]

    def _gather(self, chosen: Mapping[int, tuple[Tensor, Tensor | None]]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(rows, inputs, labels) of batches of one size each."""
        by_size: dict[int, list[int]] = {}
        for i, (positions, _) in chosen.items():
            by_size.setdefault(len(positions), []).append(i)
        groups = []
        for rows in by_size.values():
            pairs = [self._take(self._plans[i], *chosen[i]) for i in rows]
            index = torch.tensor(rows, device=self.w.device)
            groups.append((index, torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])))
        return groups

    def _take(self, plan: Plan, positions: Tensor, moves: Tensor | None) -> Pair:
        x, y = self._trainer.data.take(plan.job.client, positions)
        return (x if plan.augment is None or moves is None else plan.augment(x, moves)), y

    # ------------------------------------------------------------ the kernel

    def gradient(self, point: Tensor, rows: Tensor, x: Tensor, y: Tensor, keys: Tensor, moves: bool) -> Tensor:
        """Of some rows at these points; `moves`: batch statistics move along."""
        leaf = point.index_select(0, rows).detach().requires_grad_()
        params = {s.name: leaf[:, s.start : s.stop].view(len(rows), *s.shape) for s in self._layout.of_kind("param")}
        buffers = {name: held.index_select(0, rows) for name, held in self._buffers.items()}
        losses, after = vmap(self._loss)(params, buffers, x, y, keys.index_select(0, rows), self._told(rows))
        (grad,) = torch.autograd.grad(losses.sum(), leaf)
        if moves:
            for name, held in self._buffers.items():
                held.index_copy_(0, rows, after[name].detach().to(held.dtype))
        return grad

    def _told(self, rows: Tensor) -> dict[str, Any]:
        """What a loss of the rule's own may look at of each client's job."""
        if not self._own_loss:
            return {}
        job = self._job
        assert isinstance(job.lr, Tensor)
        given = {
            "base": job.base,
            "start": job.start,
            "lr": job.lr.squeeze(-1),
            "extras": dict(job.extras),
            "memory": dict(job.memory),
        }
        return {name: tree_map(lambda held: held.index_select(0, rows), held) for name, held in given.items()}

    def _loss(
        self, params: Buffers, buffers: Buffers, x: Tensor, y: Tensor, key: Tensor, given: dict[str, Any]
    ) -> tuple[Tensor, Buffers]:
        """Of one client, and its buffers afterwards: everything here is mapped over the stack."""
        self._masks.turn(key)
        outputs, own = functional_call(self._module, {**params, **buffers}, (x,)), None
        if self._own_loss:
            if self._seen is None:
                raise ProtocolError(
                    f"{type(self._rule).__name__} has a loss on features, but the model never called its head"
                )
            own = self._rule.loss(LocalJob(layout=self._layout, **given), outputs, self._seen, y)
        return (self._trainer.task.loss(outputs, y) if own is None else own), self._after

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """While open, what enters the head is kept for a rule that has a loss of its own, and what a pass leaves in
        the buffers.
        """

        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._seen = inputs[0] if inputs else None

        def leave(module: nn.Module, _: Any, outputs: Any) -> None:
            self._after = dict(module.named_buffers())

        hooks = [self._module.register_forward_hook(leave)]
        if self._own_loss:
            hooks.append(head(self._module, self._rule.head).register_forward_pre_hook(enter))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class StackGradient:
    """grad(points) of one step of a stack; rows that are done have no gradient."""

    def __init__(self, stack: Stack, groups: list[tuple[Tensor, Tensor, Tensor]], keys: Tensor) -> None:
        self._stack, self._groups, self._keys = stack, groups, keys
        self._first = True

    def __call__(self, points: Tensor) -> Tensor:
        w = self._stack.w
        moves = self._first and points.data_ptr() == w.data_ptr() and points.shape == w.shape
        self._first = self._first and not moves
        out = torch.zeros_like(points)
        for rows, x, y in self._groups:
            out.index_copy_(0, rows, self._stack.gradient(points, rows, x, y, self._keys, moves))
        return out
