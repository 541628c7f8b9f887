"""A job is a pure function: (base, work, rule memory, how much data has arrived, random key) -> result.

Purity is what makes it safe to compute a job late, in any process, or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from offbeat.core.errors import unknown
from offbeat.core.protocol import Gradient, Layout, LocalJob, LocalRule, LocalWork, Phase

# memory of every client, whatever its rule, where statistics stay at the clients; not a name for a rule's
STATISTICS = "own statistics"
# an extra of updates that come from somewhere else: the seconds of training, as the client measured them
TRAINING_SECONDS = "training_seconds"
Rate = float | Tensor
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
    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        """Move w along -d, in place; w may carry leading client dimensions, and the rate then be a column."""
        ...


def start_job(
    job: Job,
    layout: Layout,
    lr: Rate,
    probe: Callable[[Tensor], Tensor] | None = None,
    features: Features | None = None,
) -> LocalJob:
    """A job as its rule sees it; memory it does not have yet is zero."""
    rule = job.work.rule or PLAIN
    start = layout.trainable(job.base)
    memory = {name: job.memory.get(name, torch.zeros_like(start)) for name in rule.memory}
    return LocalJob(job.base, start, layout, lr, job.work.extras, memory, probe, features)


def with_own_statistics(job: Job, layout: Layout) -> Job:
    """Where statistics stay at the clients: the job with the client's own buffers and counters in its base, if it
    has any.
    """
    held = job.memory.get(STATISTICS)
    return job if held is None else replace(job, base=layout.with_statistics(job.base, held))


def handed_back(job: Job, result: Result, layout: Layout) -> Result:
    """The same, afterwards: they become the client's memory; what it was sent goes back as it came."""
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
    """Move w in place through all phases; returns (steps taken, the rule's carry). Optimizer state is fresh in each."""
    carry, steps = rule.begin(job), 0
    for phase in phases:
        gradients = ((grad, None) for grad in batches(phase))
        taken, carry = stretch(rule, job, phase, job.lr if phase.lr is None else phase.lr, w, gradients, fresh(), carry)
        steps += taken
    return steps, carry


def stretch(
    rule: LocalRule,
    job: LocalJob,
    phase: Phase,
    lr: Rate,
    w: Tensor,
    steps: Iterable[tuple[Gradient, Tensor | None]],
    optimizer: Optimizer,
    carry: Any,
) -> tuple[int, Any]:
    """One phase: of one client, or of a stack of them.

    In a stack a rate may be a column, and with each gradient comes which clients it moves (a column too; None: all of
    them). Those who are done stay where they are, and so does their carry. Returns (steps taken, the rule's carry).
    """
    frozen = None if phase.slices is None else ~_moving(job, phase.slices)
    taken = 0
    for grad, active in steps:
        kept = None if frozen is None and active is None else w.clone()
        d, after = rule.direction(job, w, grad, carry)
        optimizer.step(w, d, lr)
        if kept is not None and frozen is not None:
            w.copy_(torch.where(frozen, kept, w))
        if kept is not None and active is not None:
            w.copy_(torch.where(active, w, kept))
            after = _frozen(active, after, carry)
        carry = after
        taken += 1
    return taken, carry


# ---------------------------------------------------------------- stacks of clients


def column(values: Sequence[Rate], like: Tensor) -> Tensor:
    """A number for each client, as it is multiplied with their vectors."""
    told = torch.tensor([float(value) for value in values], dtype=like.dtype)
    return told.to(like.device, non_blocking=True)[:, None]


def stacked_job(jobs: Sequence[LocalJob]) -> LocalJob:
    """Many jobs of one rule as one, with a leading client dimension. Only `begin` and `end`, each job's own, look at
    features.
    """
    first = jobs[0]
    base = torch.stack([job.base for job in jobs])
    start = first.layout.trainable(base)
    extras = {name: torch.stack([job.extras[name] for job in jobs]) for name in first.extras}
    memory = {name: torch.stack([job.memory[name] for job in jobs]) for name in first.memory}
    return LocalJob(base, start, first.layout, column([job.lr for job in jobs], start), extras, memory, first.probe)


def stacked_carry(carries: Sequence[Any]) -> Any:
    """What `begin` gave for each; what is not a tensor is the same for all of them."""
    return tree_map(lambda *leaves: torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *carries)


def carry_of(carry: Any, client: int) -> Any:
    return tree_map(lambda leaf: leaf[client].clone() if isinstance(leaf, Tensor) else leaf, carry)


def _frozen(active: Tensor, new: Any, old: Any) -> Any:
    """The new carry of those who took the step, the old one of the others."""

    def of_each(after: Any, before: Any) -> Any:
        return (
            torch.where(active.view(-1, *(1,) * (after.dim() - 1)), after, before)
            if isinstance(after, Tensor)
            else after
        )

    return tree_map(of_each, new, old)


def _moving(job: LocalJob, names: tuple[str, ...]) -> Tensor:
    """Which trainable entries belong to the named slices."""
    known = [s.name for s in job.layout.of_kind("param")]
    for name in names:
        if name not in known:
            raise unknown("slice", name, known)
    parts = [torch.full((s.stop - s.start,), s.name in names) for s in job.layout.of_kind("param")]
    return torch.cat(parts).to(job.start.device)
