"""Jobs, their results, and the training loop that applies a local rule to one client or a stack of clients.

A job is a pure function: (base, work, rule memory, amount of data, random key) -> result. It can therefore be computed
late, in any process, or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from offbeat.core.errors import unknown_name
from offbeat.core.protocol import Gradient, Layout, LocalJob, LocalRule, LocalWork, Phase

# name of the client memory that holds BatchNorm statistics which stay at the client; rules must not use it
CLIENT_STATISTICS = "own statistics"
# name of the extra with the seconds of training that a live client measured
TRAINING_SECONDS = "training_seconds"
Rate = float | Tensor
Features = Callable[[Tensor], tuple[Tensor, Tensor]]  # model -> (inputs of the head, labels)


@dataclass(slots=True)  # not frozen: one is created per update, and freezing would slow the engine by 5 %
class Job:
    """The work of one ticket: one local training of one client."""

    ticket: int
    client: int
    index: int  # n-th job of this client; (seed, client, index) is the random key
    base: Tensor
    base_version: int
    work: LocalWork
    num_examples: int  # number of the client's examples that have arrived
    memory: Mapping[str, Tensor]  # kept by the client's rule from its last accepted job
    seed: int
    started: float = 0.0  # time of the dispatch


@dataclass(slots=True)
class Result:
    """The outcome of a job that trained."""

    ticket: int
    local: Tensor
    num_examples: int
    steps: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """The outcome of a job that raised an error."""

    ticket: int
    reason: str


@dataclass(frozen=True)
class PlainRule(LocalRule):
    """The default rule: descend the gradient unchanged."""


PLAIN_RULE = PlainRule()


class Optimizer(Protocol):
    """A local optimizer, whose state lasts for one phase of one job."""

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        """Move w along -d in place; with leading client dimensions the rate may be a column."""
        ...


def make_local_job(
    job: Job,
    layout: Layout,
    lr: Rate,
    probe: Callable[[Tensor], Tensor] | None = None,
    features: Features | None = None,
) -> LocalJob:
    """Build the view of a job that its rule receives; missing memory is zero."""
    rule = job.work.rule or PLAIN_RULE
    start = layout.trainable(job.base)
    memory = {name: job.memory.get(name, torch.zeros_like(start)) for name in rule.memory}
    return LocalJob(job.base, start, layout, lr, job.work.extras, memory, probe, features)


def insert_client_statistics(job: Job, layout: Layout) -> Job:
    """Put the statistics that the client keeps for itself, if any, into the base of its job."""
    statistics = job.memory.get(CLIENT_STATISTICS)
    return job if statistics is None else replace(job, base=layout.with_statistics(job.base, statistics))


def extract_client_statistics(job: Job, result: Result, layout: Layout) -> Result:
    """Move the trained statistics to the client's memory; the upload contains those it was sent."""
    local = layout.with_statistics(result.local, layout.statistics(job.base))
    return replace(result, local=local, memory={**result.memory, CLIENT_STATISTICS: layout.statistics(result.local)})


def descend(
    rule: LocalRule,
    job: LocalJob,
    phases: Iterable[Phase],
    w: Tensor,
    batches: Callable[[Phase], Iterable[Gradient]],
    fresh: Callable[[], Optimizer],
) -> tuple[int, Any]:
    """Train w in place through all phases, each with a new optimizer; return (steps taken, the rule's carry)."""
    carry, steps = rule.begin(job), 0
    for phase in phases:
        gradients = ((grad, None) for grad in batches(phase))
        taken, carry = run_phase(
            rule, job, phase, job.lr if phase.lr is None else phase.lr, w, gradients, fresh(), carry
        )
        steps += taken
    return steps, carry


def run_phase(
    rule: LocalRule,
    job: LocalJob,
    phase: Phase,
    lr: Rate,
    w: Tensor,
    steps: Iterable[tuple[Gradient, Tensor | None]],
    optimizer: Optimizer,
    carry: Any,
) -> tuple[int, Any]:
    """Train w in place through one phase, for one client or a stack of clients; return (steps taken, carry).

    In a stack the rate may be a column. Each gradient comes with a boolean column of the clients it moves (None: all).
    Clients that have finished keep their w and their carry.
    """
    frozen = None if phase.slices is None else ~_movable_entries(job, phase.slices)
    taken = 0
    for grad, active in steps:
        before = None if frozen is None and active is None else w.clone()
        d, after = rule.direction(job, w, grad, carry)
        optimizer.step(w, d, lr)
        if before is not None and frozen is not None:
            w.copy_(torch.where(frozen, before, w))
        if before is not None and active is not None:
            w.copy_(torch.where(active, w, before))
            after = _merge_carry(active, after, carry)
        carry = after
        taken += 1
    return taken, carry


# ---------------------------------------------------------------- stacks of clients


def to_column(values: Sequence[Rate], like: Tensor) -> Tensor:
    """Return one number per client as a column, ready to multiply with stacked vectors."""
    numbers = torch.tensor([float(value) for value in values], dtype=like.dtype)
    return numbers.to(like.device, non_blocking=True)[:, None]


def stack_jobs(jobs: Sequence[LocalJob]) -> LocalJob:
    """Stack jobs of one rule along a leading client dimension.

    The stack has no `features`: `begin` and `end`, which use them, run once per job.
    """
    first = jobs[0]
    base = torch.stack([job.base for job in jobs])
    start = first.layout.trainable(base)
    extras = {name: torch.stack([job.extras[name] for job in jobs]) for name in first.extras}
    memory = {name: torch.stack([job.memory[name] for job in jobs]) for name in first.memory}
    return LocalJob(base, start, first.layout, to_column([job.lr for job in jobs], start), extras, memory, first.probe)


def stack_carries(carries: Sequence[Any]) -> Any:
    """Stack the carries returned by `begin`; values other than tensors are equal for all jobs."""
    return tree_map(lambda *leaves: torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *carries)


def select_carry(carry: Any, client: int) -> Any:
    """Return the carry of one client of a stack."""
    return tree_map(lambda leaf: leaf[client].clone() if isinstance(leaf, Tensor) else leaf, carry)


def _merge_carry(active: Tensor, new: Any, old: Any) -> Any:
    """Return the new carry for active clients and the old one for the others."""

    def merge(after: Any, before: Any) -> Any:
        return (
            torch.where(active.view(-1, *(1,) * (after.dim() - 1)), after, before)
            if isinstance(after, Tensor)
            else after
        )

    return tree_map(merge, new, old)


def _movable_entries(job: LocalJob, names: tuple[str, ...]) -> Tensor:
    """Return a mask of the trainable entries that belong to the named slices."""
    known = [s.name for s in job.layout.of_kind("param")]
    for name in names:
        if name not in known:
            raise unknown_name("slice", name, known)
    parts = [torch.full((s.stop - s.start,), s.name in names) for s in job.layout.of_kind("param")]
    return torch.cat(parts).to(job.start.device)
