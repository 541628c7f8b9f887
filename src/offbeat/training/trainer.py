"""Local training: a job in, a result out, and nothing else changes.

A trainer keeps one module and one vector and reuses them for every job of every client. That is safe because a job is
a pure function: it starts by overwriting everything a module can learn or count, draws only from its own key, and ends
by copying out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from math import isfinite
from operator import le
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from offbeat.core.errors import DataError, require, unknown
from offbeat.core.jobs import PLAIN, Job, Optimizer, Result, descend, handed_back, start_job, with_own_statistics
from offbeat.core.protocol import LocalJob, LocalWork, Phase
from offbeat.core.vector import Binding
from offbeat.training import batches
from offbeat.training.augmentation import CropFlip
from offbeat.training.client_data import ClientData, Pair
from offbeat.training.dropout import step_keys
from offbeat.training.features import features
from offbeat.training.gradient import BatchGradient, Gradients, borrowed
from offbeat.training.optimizers import SGD, Adam, AdamW
from offbeat.training.plan import Pace, Plan
from offbeat.training.pooling import quick
from offbeat.training.tasks import Loss, Task, as_task
from offbeat.training.torch_generators import seeded

_Name = Literal["sgd", "adam", "adamw"]
_Norm = Literal["shared", "local"]
_Augment = Literal["crop-flip"]

# Examples are gathered for many batches at once: one indexing instead of one a step. This many values bound the copy.
_GATHERED = 2**22
_KNOWN = 4096  # kinds of plain work whose steps are counted once
_EVALUATED = 1024  # examples in one batch without a gradient


@dataclass(frozen=True, kw_only=True)
class Training:
    """The experiment's training section: what work that says nothing else means."""

    optimizer: _Name = "sgd"  # of a job; its state is not kept from one job to the next
    lr: float = 0.05  # learning rate
    lr_decay: float = 1.0  # the rate of work on version v is lr * lr_decay ** v
    momentum: float = 0.0  # of sgd, within a job
    weight_decay: float = 0.0  # times the weights, added to the gradient; adamw takes it off the weights themselves
    batch: int = 32  # examples of a step
    steps: int | None = None  # of batches; or
    epochs: int | None = None  # passes over the client's data; neither: one epoch
    bn: _Norm = "shared"  # statistics of BatchNorm: merged by the server, or "local": each client keeps its own
    augment: _Augment | None = None  # of pictures: shifted by up to four pixels, and mirrored half of the time

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(_Name):
            raise unknown("optimizer", self.optimizer, get_args(_Name))
        require(self.bn in get_args(_Norm), f"training.bn = {self.bn!r}: 'shared' or 'local'")
        if self.augment is not None and self.augment not in get_args(_Augment):
            raise unknown("augmentation", self.augment, get_args(_Augment))
        require(self.lr > 0 and isfinite(self.lr), f"training.lr = {self.lr}: must be positive and finite")
        require(
            0 < self.lr_decay <= 1, f"training.lr_decay = {self.lr_decay}: must lie in (0, 1], 1 for a constant rate"
        )
        require(0 <= self.momentum < 1, f"training.momentum = {self.momentum}: must lie in [0, 1)")
        require(
            self.momentum == 0 or self.optimizer == "sgd",
            f"training.momentum = {self.momentum} means nothing to {self.optimizer}: use sgd, or leave momentum at 0",
        )
        require(
            self.weight_decay >= 0 and isfinite(self.weight_decay),
            f"training.weight_decay = {self.weight_decay}: must be 0 or more",
        )
        require(self.batch >= 1, f"training.batch = {self.batch}: must be at least 1")
        for name in ("steps", "epochs"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"training.{name} = {value}: must be at least 1")
        require(
            self.steps is None or self.epochs is None,
            f"training: steps = {self.steps} and epochs = {self.epochs}: give one of them",
        )

    def rate(self, version: int) -> float:
        return self.lr * self.lr_decay**version

    def fresh(self) -> Optimizer:
        """An optimizer without a past."""
        if self.optimizer == "sgd":
            return SGD(self.momentum, self.weight_decay)
        return (Adam if self.optimizer == "adam" else AdamW)(self.weight_decay)

    def count(self, phase: Phase, examples: int, merge: bool) -> int:
        """How many steps a phase takes on this many examples."""
        steps, passes = phase.steps, phase.epochs
        if steps is None and passes is None:
            steps, passes = self.steps, self.epochs
        if steps is not None:
            return steps
        return (1 if passes is None else passes) * batches.count(examples, self.batch, merge)


class Trainer:
    """trainer(job) -> result. A module is copied; a Binding is taken over as it is (no second copy of a big model)."""

    def __init__(
        self,
        model: nn.Module | Binding,
        data: ClientData,
        training: Training | None = None,
        task: Task | Loss | None = None,
        probe: Callable[[Tensor], Tensor] | None = None,  # for rules that sketch their model
    ) -> None:
        self.binding = model if isinstance(model, Binding) else Binding(quick(deepcopy(model)))
        self.data = data
        self.training = Training() if training is None else training
        self.task = as_task(task, data.labels)
        self.probe = probe
        self._augment = None if self.training.augment is None else CropFlip(data)
        self._merge = batches.needs_two(self.binding.module)
        self._gradients = Gradients(self.binding, self.task)
        self._known: dict[Any, tuple[tuple[Phase, ...], tuple[int, ...]]] = {}
        # what does not travel must be the same before every job, or one job would see traces of another
        self._resident = [
            (m, name, b, b.clone())
            for m in self.binding.module.modules()
            for name, b in m._buffers.items()
            if b is not None and name in m._non_persistent_buffers_set
        ]
        if self._merge:
            self._refuse_single()

    def __reduce__(self) -> tuple[Any, ...]:
        # a pickled view is a copy: in another process the parameters have to be bound anew
        self._reset_residents()
        return Trainer, (self.binding.module, self.data, self.training, self.task, self.probe)

    def __call__(self, job: Job) -> Result:
        own = self.own(job)
        plan, rule = self.plan(own), own.work.rule or PLAIN
        local_job = self.local_job(job, own, plan)
        self._reset_residents()
        self.binding.put(own.base)
        self.binding.module.train()
        numbers = count()  # of the phases, as they come: two may be equal
        with torch.enable_grad(), seeded(self._gradients.sources, plan.noise), self._gradients.serve(rule, local_job):
            steps_of = lambda _: self._steps(plan, next(numbers))  # noqa: E731
            steps, carry = descend(rule, local_job, plan.phases, self.binding.w, steps_of, self.training.fresh)
            local = self.binding.take()
            extras, memory = rule.end(local_job, local, carry)
        result = Result(
            ticket=job.ticket, local=local, num_examples=job.num_examples, steps=steps, extras=extras, memory=memory
        )
        return handed_back(job, result, self.binding.layout) if self.training.bn == "local" else result

    # ------------------------------------------------------------ the pieces, for whoever trains a stack of clients

    def own(self, job: Job) -> Job:
        """The job with the client's own statistics, where it keeps such."""
        self.check(job.client, job.num_examples)
        return with_own_statistics(job, self.binding.layout) if self.training.bn == "local" else job

    def plan(self, job: Job) -> Plan:
        return Plan(job, *self.pace(job), self.training.batch, self._merge, self._augment)

    def pace(self, job: Job) -> Pace:
        """What a plan says of rates and steps, without one: a stack may need no more."""
        work, examples, key = job.work, job.num_examples, None
        lr = self.training.rate(job.base_version) if work.lr is None else work.lr
        if work.rule is None:  # many jobs are alike
            key = work.steps, work.epochs, work.lr, examples
            known = self._known.get(key)
            if known is not None:
                return lr, *known
        phases = (work.rule or PLAIN).phases(work)
        counts = tuple(self.training.count(phase, examples, self._merge) for phase in phases)
        if key is not None and len(self._known) < _KNOWN:
            self._known[key] = phases, counts
        return lr, phases, counts

    def paces(self, jobs: Sequence[Job]) -> list[tuple[float, int]]:
        """Rate and steps of each job, of many that have one and the same work, in one phase."""
        counts = [job.num_examples for job in jobs]
        held = map(self.data.size, [job.client for job in jobs])
        if min(counts) < 1 or not all(map(le, counts, held)):
            for job in jobs:
                self.check(job.client, job.num_examples)  # says whose
        work = jobs[0].work
        (phase,) = (work.rule or PLAIN).phases(work)
        steps = {count: self.training.count(phase, count, self._merge) for count in set(counts)}
        versions = [job.base_version for job in jobs]
        rates = {v: self.training.rate(v) if work.lr is None else work.lr for v in set(versions)}
        return [(rates[version], steps[count]) for version, count in zip(versions, counts, strict=True)]

    def local_job(self, sent: Job, own: Job, plan: Plan) -> LocalJob:
        """As its rule sees it."""
        rule, layout, probe = own.work.rule or PLAIN, self.binding.layout, self.probe

        def features_at(vector: Tensor) -> Pair:
            return features(self.binding, rule.head, vector, self._all(own.client, own.num_examples))

        if probe is not None and self.training.bn == "local":
            # a sketch is of what is uploaded, or the server could not compare it with its own
            statistics, of_model = layout.statistics(sent.base), probe
            probe = lambda vector: of_model(layout.with_statistics(vector, statistics))  # noqa: E731
        return start_job(own, layout, plan.lr, probe, features_at)

    def buffers(self, vectors: Tensor) -> dict[str, Tensor]:
        """The module's buffers for each client of a stack: those that travel as they came, the others as they always
        are.
        """
        self._reset_residents()
        travelling = {s.name: s for s in self.binding.layout.slices if s.kind != "param"}
        found = {}
        for name, buffer in self.binding.module.named_buffers():
            s = travelling.get(name)
            rows = (
                buffer.expand(len(vectors), *buffer.shape)
                if s is None
                else vectors[:, s.start : s.stop].view(-1, *s.shape)
            )
            found[name] = rows.to(buffer.dtype, copy=True).contiguous()
        return found

    def write_buffers(self, vectors: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Put them back where they travel."""
        for s in self.binding.layout.slices:
            if s.kind != "param":
                vectors[:, s.start : s.stop] = buffers[s.name].reshape(len(vectors), -1).to(vectors.dtype)

    def steps(self, client: int, work: LocalWork, num_examples: int) -> int:
        """How many steps that work will take, without doing it."""
        self.check(client, num_examples)
        rule = work.rule or PLAIN
        return sum(self.training.count(phase, num_examples, self._merge) for phase in rule.phases(work))

    def _refuse_single(self) -> None:
        """A client whose every job would fail is named before the first. Over many places one example has
        statistics: so one is tried.
        """
        single = [client for client, examples in self.data.num_examples.items() if examples == 1]
        if not single:
            return
        x, _ = self.data.take(single[0], torch.zeros(1, dtype=torch.int64))
        with torch.no_grad(), seeded(self._gradients.sources, 0), borrowed(self.binding.module, self.binding.w):
            self.binding.module.train()
            try:
                self.binding.module(x)
            except ValueError as error:
                few = ", ".join(map(str, single[:5])) + (", …" if len(single) > 5 else "")
                who = f"client {few} has" if len(single) == 1 else f"{len(single)} clients have ({few})"
                wrong = f"{who} one example, on which a model with BatchNorm cannot train ({error})"
                raise DataError(f"{wrong}: leave such clients out or partition differently") from error

    def check(self, client: int, num_examples: int) -> None:
        """Has the client so many?"""
        held = self.data.size(client)
        if not 1 <= num_examples <= held:
            raise DataError(f"client {client} cannot train on {num_examples} examples: it holds {held}")

    def _reset_residents(self) -> None:
        for m, name, b, value in self._resident:
            m._buffers[name] = b
            b.copy_(value)

    def _all(self, client: int, examples: int) -> Iterator[Pair]:
        some = max(1, min(_EVALUATED, _GATHERED // self.data.width))
        return (self.data.take(client, positions) for positions in torch.split(torch.arange(examples), some))

    def _steps(self, plan: Plan, phase: int) -> Iterator[BatchGradient]:
        client, step = plan.job.client, sum(plan.counts[:phase])
        noise = torch.tensor(plan.noise, device=self.binding.w.device) if self._gradients.drops else None
        at_once = max(1, _GATHERED // (plan.batch * self.data.width))
        for positions, sizes, moves in plan.epochs(phase):
            at = 0
            for first in range(0, len(sizes), at_once):
                some = sizes[first : first + at_once]
                x, y = self.data.take(client, positions[at : at + sum(some)])
                if plan.augment is not None and moves is not None:
                    x = plan.augment(x, moves[at : at + len(x)])
                at += len(x)
                for pair in zip(torch.split(x, some), torch.split(y, some), strict=True):
                    yield BatchGradient(self._gradients, *pair, None if noise is None else step_keys(noise, step))
                    step += 1
