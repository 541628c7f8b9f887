"""Clients that send updates as large as the admission gate allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.core.draws import below
from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.vector import Layout, largest_norm
from offbeat.testing.tiny_worlds import TinyClients

UPDATE_SHAPES = ("up", "down", "to and fro", "one entry", "longer", "still", "trained")


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
