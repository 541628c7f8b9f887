"""Training of tiny clients in a stack, to compare client rules in a stack with those alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result, select_carry, stack_carries, stack_jobs, to_column
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import Gradient
from offbeat.testing.tiny_worlds import Sgd, TinyClients, make_tiny_job, optimum
from offbeat.training import run_phase

STEP_VARIANTS = 3  # different numbers of steps in a stack, for jobs that name none


def vary_steps(clients: TinyClients, jobs: Sequence[Job]) -> list[TinyClients]:
    """Return one client per job, with different numbers of steps."""
    return [replace(clients, steps=clients.steps + i % STEP_VARIANTS) for i in range(len(jobs))]


def group_stackable(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group jobs with the same rule and the same shapes of extras; groups have two or more jobs."""
    groups: dict[tuple[object, ...], list[Job]] = {}
    for job in jobs:
        rule = job.work.rule
        if rule is not None and rule.stacks:
            extras = tuple((name, tuple(extra.shape)) for name, extra in sorted(job.work.extras.items()))
            groups.setdefault((rule, len(rule.phases(job.work)), extras), []).append(job)
    return [group for group in groups.values() if len(group) > 1]


def train_stacked(clients: Sequence[TinyClients], jobs: Sequence[Job]) -> list[Result]:
    """Compute `clients[i](jobs[i])` with a single call of `direction` for all jobs."""
    rule, layout = jobs[0].work.rule or PLAIN_RULE, clients[0].layout
    alone = [make_tiny_job(client, job) for client, job in zip(clients, jobs, strict=True)]
    together = stack_jobs(alone)
    centres = torch.stack([optimum(job.seed, job.client, layout.num_params, job.base.dtype) for job in jobs])
    carry = stack_carries([rule.begin(job) for job in alone])
    w, taken = together.start.clone(), [0] * len(jobs)
    for number, phase in enumerate(rule.phases(jobs[0].work)):
        phases = [rule.phases(job.work)[number] for job in jobs]
        counts = [client.count(part) for client, part in zip(clients, phases, strict=True)]
        taken = [before + count for before, count in zip(taken, counts, strict=True)]
        lr = to_column([job.lr if part.lr is None else part.lr for job, part in zip(alone, phases, strict=True)], w)
        _, carry = run_phase(rule, together, phase, lr, w, _steps(counts, centres), Sgd(), carry)
    return [clients[i].end(jobs[i], alone[i], w[i], taken[i], select_carry(carry, i)) for i in range(len(jobs))]


def find_difference(alone: Result, stacked: Result) -> str | None:
    """Return the name of the first part in which two results differ by more than rounding, or None."""
    if alone.steps != stacked.steps:
        return "number of steps"
    pairs = {"local model": (alone.local, stacked.local)}
    for what, first, second in (("extras", alone.extras, stacked.extras), ("memory", alone.memory, stacked.memory)):
        if first.keys() != second.keys():
            return what
        pairs |= {f"{what}[{name!r}]": (first[name], second[name]) for name in first}
    tolerance = 1e-9 if alone.local.dtype == torch.float64 else 1e-3
    for name, (a, b) in pairs.items():
        if a.shape != b.shape or not torch.allclose(a, b, rtol=tolerance, atol=tolerance):
            return name
    return None


def _steps(counts: list[int], centres: Tensor) -> Iterator[tuple[Gradient, Tensor | None]]:
    """Yield the gradient of each step, and which clients take it (None: all)."""
    for step in range(max(counts)):
        active = torch.tensor([count > step for count in counts])[:, None]
        yield (lambda points: points - centres), None if bool(active.all()) else active
