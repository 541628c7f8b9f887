"""Local training: a job in, a result out, and nothing else changes.

A trainer keeps one module and one vector and reuses them for every job of every client. That is safe because a job is
a pure function: it starts by overwriting everything a module can learn or count, draws only from its own key, and ends
by copying out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from offbeat.client import batches
from offbeat.client.augmentation import CropFlip
from offbeat.client.data import ClientData, Pair
from offbeat.client.features import features
from offbeat.client.gradient import BatchGradient, Gradients, borrowed
from offbeat.client.optimizers import SGD, Adam, AdamW
from offbeat.client.randomness import seeded
from offbeat.client.task import Loss, Task, as_task
from offbeat.core import draws
from offbeat.core.errors import DataError, require, unknown
from offbeat.core.jobs import PLAIN, Job, Optimizer, Result, descend, start_job, with_own_statistics
from offbeat.core.protocol import LocalWork, Phase
from offbeat.core.vector import Binding

_Name = Literal["sgd", "adam", "adamw"]
_Norm = Literal["shared", "local"]
_Augment = Literal["crop-flip"]

# Examples are gathered for many batches at once: one indexing instead of one a step. This many values bound the copy.
_GATHERED = 2**22
_EVALUATED = 1024  # examples in one batch without a gradient


@dataclass(frozen=True, kw_only=True)
class Training:
    """The experiment's training section: what work that says nothing else means."""

    optimizer: _Name = "sgd"
    lr: float = 0.05
    lr_decay: float = 1.0  # the rate of work on version v is lr * lr_decay ** v
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch: int = 32
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
        require(0 < self.lr_decay <= 1, f"training.lr_decay = {self.lr_decay}: must lie in (0, 1], 1 for a constant rate")
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
        return (1 if passes is None else passes) * len(batches.sizes(examples, self.batch, merge))


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
        self.binding = model if isinstance(model, Binding) else Binding(deepcopy(model))
        self.data = data
        self.training = Training() if training is None else training
        self.task = as_task(task, data.labels)
        self.probe = probe
        self._augment = None if self.training.augment is None else CropFlip(data)
        self._merge = batches.needs_two(self.binding.module)
        self._gradients = Gradients(self.binding, self.task)
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
        if self.training.bn == "shared":
            return self._train(job, self.probe)
        layout, probe = self.binding.layout, self.probe
        sent = layout.statistics(job.base)
        # a sketch is of what is uploaded, or the server could not compare it with its own
        as_sent = None if probe is None else (lambda vector: probe(layout.with_statistics(vector, sent)))
        return with_own_statistics(lambda own: self._train(own, as_sent), layout, job)

    def _train(self, job: Job, probe: Callable[[Tensor], Tensor] | None) -> Result:
        self._check(job.client, job.num_examples)
        rule = job.work.rule or PLAIN
        lr = self.training.rate(job.base_version) if job.work.lr is None else job.work.lr

        def features_at(vector: Tensor) -> Pair:
            return features(self.binding, rule.head, vector, self._all(job.client, job.num_examples))

        local_job = start_job(job, self.binding.layout, lr, probe, features_at)
        order = draws.generator(job.seed, "batches", job.client, job.index)
        moves = None if self._augment is None else draws.generator(job.seed, "augment", job.client, job.index)
        self._reset_residents()
        self.binding.put(job.base)
        self.binding.module.train()

        def steps_of(phase: Phase) -> Iterator[BatchGradient]:
            return self._steps(job.client, job.num_examples, phase, order, moves)

        noise = draws.bits(job.seed, "noise", job.client, job.index) >> 1
        with torch.enable_grad(), seeded(self._gradients.sources, noise), self._gradients.serve(rule, local_job):
            steps, carry = descend(rule, local_job, rule.phases(job.work), self.binding.w, steps_of, self.training.fresh)
            local = self.binding.take()
            extras, memory = rule.end(local_job, local, carry)
        return Result(ticket=job.ticket, local=local, num_examples=job.num_examples, steps=steps, extras=extras, memory=memory)

    def steps(self, client: int, work: LocalWork, num_examples: int) -> int:
        """How many steps that work will take, without doing it."""
        self._check(client, num_examples)
        rule = work.rule or PLAIN
        return sum(self.training.count(phase, num_examples, self._merge) for phase in rule.phases(work))

    def _refuse_single(self) -> None:
        """A client whose every job would fail is named before the first. Over many places one example has statistics: so one is tried."""
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

    def _check(self, client: int, num_examples: int) -> None:
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

    def _steps(
        self, client: int, examples: int, phase: Phase, order: torch.Generator, moves: torch.Generator | None
    ) -> Iterator[BatchGradient]:
        batch = self.training.batch
        total = self.training.count(phase, examples, self._merge)
        at_once = max(1, _GATHERED // (batch * self.data.width))
        for positions, sizes in batches.epochs(examples, batch, self._merge, total, order):
            drawn = None if self._augment is None or moves is None else self._augment.draw(len(positions), moves)
            at = 0
            for first in range(0, len(sizes), at_once):
                some = sizes[first : first + at_once]
                x, y = self.data.take(client, positions[at : at + sum(some)])
                if self._augment is not None and drawn is not None:
                    x = self._augment(x, drawn[at : at + len(x)])
                at += len(x)
                for pair in zip(torch.split(x, some), torch.split(y, some), strict=True):
                    yield BatchGradient(self._gradients, *pair)
