"""Clients of the laws: clients that send updates as large as the gate admits, and clients that train in a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from offbeat.core.draws import below
from offbeat.core.jobs import Job, Result, select_carry, stack_carries, stack_jobs, to_column
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import Gradient
from offbeat.core.vector import Layout, largest_norm
from offbeat.testing.tiny_worlds import Sgd, TinyClients, make_tiny_job, optimum
from offbeat.training import run_phase

UPDATE_SHAPES = ("up", "down", "to and fro", "one entry", "longer", "still", "trained")
STEP_VARIANTS = 3  # different numbers of steps in a stack, for jobs that name none


@dataclass(frozen=True, slots=True)
class LargeClients:
    """Clients whose models, extras and memory have the largest admitted norm, in various directions.

    Some return the base or train, so that short and long vectors are mixed. A trained model with a larger norm is
    scaled down to the admitted one.
    """

    clients: TinyClients

    def __call__(self, job: Job) -> Result:
        layout, rule = self.clients.layout, job.work.rule or PLAIN_RULE
        extras = {name: _longest_vector(length, job, name) for name, length in rule.uploads(layout).items()}
        memory = {name: _longest_vector(layout.num_params, job, name) for name in rule.memory}
        return Result(job.ticket, self._local_model(job, layout), job.num_examples, 1, extras, memory)

    def _local_model(self, job: Job, layout: Layout) -> Tensor:
        """Return a model of a random shape."""
        shape = UPDATE_SHAPES[below(len(UPDATE_SHAPES), job.seed, "large", job.client, job.index)]
        n, longest = layout.size, 0.99 * largest_norm(job.base.dtype)  # below 1, because norms are rounded
        local = job.base.new_ones(n)
        if shape == "to and fro":
            local[:: 1 + job.client % 3] = -1.0
        elif shape == "one entry":
            local = torch.zeros_like(job.base)
            local[(job.client + job.index) % n] = 1.0
        elif shape in ("longer", "still"):
            local = job.base.clone()
        elif shape == "trained":
            local = self.clients(job).local
        length = float(torch.linalg.vector_norm(local.double() / longest)) * longest
        if shape not in ("still", "trained") or not length <= longest:
            local = local.nan_to_num() * (longest / length) if 0 < length < torch.inf else torch.zeros_like(local)
        local = -local if shape == "down" else local
        for a, b in layout.counters:
            local[a:b] = job.base[a:b] + 1
        return local


def _longest_vector(length: int, job: Job, name: str) -> Tensor:
    """Return a vector of the largest norm whose entries differ only in sign."""
    signs = [1.0 - 2.0 * below(2, job.seed, name, job.client, job.index, i) for i in range(length)]
    dtype = job.base.dtype
    return torch.tensor(signs, dtype=dtype).mul_(0.99 * largest_norm(dtype) / max(1, length) ** 0.5)


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
