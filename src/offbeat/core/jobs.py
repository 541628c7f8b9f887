"""Jobs, their results, and stacks of jobs.

A job is a pure function of (base, work, rule memory, amount of data, random key), so it can be computed late, in any
process, or twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from offbeat.core.errors import ProtocolError
from offbeat.core.local_rules import RuleCarry
from offbeat.core.protocol import Layout, LocalJob, LocalWork

# name of the client memory that holds BatchNorm statistics which stay at the client; rules must not use it
CLIENT_STATISTICS = "own statistics"
# name of the extra with the seconds of training that a live client measured
TRAINING_SECONDS = "training_seconds"
Rate = float | Tensor


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


def insert_client_statistics(job: Job, layout: Layout) -> Job:
    """Put the statistics that the client keeps for itself, if any, into the base of its job."""
    statistics = job.memory.get(CLIENT_STATISTICS)
    return job if statistics is None else replace(job, base=layout.with_statistics(job.base, statistics))


def extract_client_statistics(job: Job, result: Result, layout: Layout) -> Result:
    """Move the trained statistics to the client's memory; the upload contains those it was sent."""
    local = layout.with_statistics(result.local, layout.statistics(job.base))
    return replace(result, local=local, memory={**result.memory, CLIENT_STATISTICS: layout.statistics(result.local)})


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


def stack_carries(carries: Sequence[RuleCarry]) -> RuleCarry:
    """Stack the carries returned by `begin`; values other than tensors must be equal for all jobs."""

    def stack(*leaves: RuleCarry) -> RuleCarry:
        """Stack one value of all jobs."""
        if isinstance(leaves[0], Tensor):
            return torch.stack(leaves)
        if any(leaf is not leaves[0] and (is_dataclass(leaf) or leaf != leaves[0]) for leaf in leaves):
            raise ProtocolError("jobs of a stack differ in a part of their rule's carry that is not a tensor")
        return leaves[0]

    stacked: RuleCarry = tree_map(stack, *carries)
    return stacked


def select_carry(carry: RuleCarry, client: int) -> RuleCarry:
    """Return the carry of one client of a stack."""
    selected: RuleCarry = tree_map(lambda leaf: leaf[client].clone() if isinstance(leaf, Tensor) else leaf, carry)
    return selected
