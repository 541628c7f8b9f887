"""A job is a pure function: (base, work, rule memory, how much data has arrived, random key) -> result.

Purity is what makes it safe to compute a job late, in any process, or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from offbeat.core.errors import unknown
from offbeat.core.protocol import Gradient, Layout, LocalJob, LocalRule, LocalWork, Phase

STATISTICS = "own statistics"  # memory of every client, whatever its rule, where statistics stay at the clients; not a name for a rule's
Features = Callable[[Tensor], tuple[Tensor, Tensor]]  # see LocalJob.features


@dataclass(slots=True)  # one is made for every update: freezing them would cost the engine a twentieth
class Job:
    """What one ticket stands for."""

    ticket: int
    client: int
    index: int  # n-th job of this client: with the seed and the client, the random key
    base: Tensor
    base_version: int
    work: LocalWork
    num_examples: int  # how much of the client's data has arrived
    memory: Mapping[str, Tensor]  # what the client's rule kept from its last accepted job
    seed: int
    started: float = 0.0  # dispatch time


@dataclass(slots=True)
class Result:
    ticket: int
    local: Tensor
    num_examples: int
    steps: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that raised."""

    ticket: int
    reason: str


@dataclass(frozen=True)
class PlainRule(LocalRule):
    """The rule of work that names none: the gradient as it is."""


PLAIN = PlainRule()


class Optimizer(Protocol):
    def step(self, w: Tensor, d: Tensor, lr: float) -> None:
        """Move w along -d, in place; w may carry leading client dimensions."""
        ...


def start_job(
    job: Job, layout: Layout, lr: float, probe: Callable[[Tensor], Tensor] | None = None, features: Features | None = None
) -> LocalJob:
    """A job as its rule sees it; memory it does not have yet is zero."""
    rule = job.work.rule or PLAIN
    start = layout.trainable(job.base)
    memory = {name: job.memory.get(name, torch.zeros_like(start)) for name in rule.memory}
    return LocalJob(job.base, start, layout, lr, job.work.extras, memory, probe, features)


def with_own_statistics(train: Callable[[Job], Result], layout: Layout, job: Job) -> Result:
    """Train with the client's own buffers and counters in the base. They become its memory; what it was sent goes back as it came."""
    held = job.memory.get(STATISTICS)
    result = train(job if held is None else replace(job, base=layout.with_statistics(job.base, held)))
    local = layout.with_statistics(result.local, layout.statistics(job.base))
    return replace(result, local=local, memory={**result.memory, STATISTICS: layout.statistics(result.local)})


def descend(
    rule: LocalRule,
    job: LocalJob,
    phases: Iterable[Phase],
    w: Tensor,
    batches: Callable[[Phase], Iterable[Gradient]],
    fresh: Callable[[], Optimizer],
) -> tuple[int, Any]:
    """Move w in place through all phases; returns (steps taken, the rule's carry). Optimizer state is fresh."""
    carry = rule.begin(job)
    steps = 0
    for phase in phases:
        optimizer = fresh()
        lr = job.lr if phase.lr is None else phase.lr
        frozen = None if phase.slices is None else ~_moving(job, phase.slices)
        for grad in batches(phase):
            d, carry = rule.direction(job, w, grad, carry)
            if frozen is None:
                optimizer.step(w, d, lr)
            else:
                kept = w.clone()
                optimizer.step(w, d, lr)
                w.copy_(torch.where(frozen, kept, w))
            steps += 1
    return steps, carry


def _moving(job: LocalJob, names: tuple[str, ...]) -> Tensor:
    """Which trainable entries belong to the named slices."""
    known = [s.name for s in job.layout.of_kind("param")]
    for name in names:
        if name not in known:
            raise unknown("slice", name, known)
    parts = [torch.full((s.stop - s.start,), s.name in names) for s in job.layout.of_kind("param")]
    return torch.cat(parts).to(job.start.device)
