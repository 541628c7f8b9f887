"""Updates as large as the admission gate lets through, and where in a state a number is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from json import dumps
from typing import Any

import torch
from torch import Tensor

from offbeat.core.draws import below
from offbeat.core.jobs import PLAIN_RULE, Job, Result
from offbeat.core.snapshot import TensorTable, pack
from offbeat.core.vector import Layout, largest_norm
from offbeat.testing.tiny_worlds import TinyClients

UPDATE_SHAPES = ("up", "down", "to and fro", "one entry", "longer", "still", "trained")


@dataclass(frozen=True, slots=True)
class LargeClients:
    """Clients that send the longest vectors there may be, this way and that: `local`, extras and memory alike.

    Some stand still or train, so that short vectors meet long ones. What training makes of a model so large may be
    longer than is admitted: then its direction is sent.
    """

    clients: TinyClients

    @property
    def layout(self) -> Layout:
        return self.clients.layout

    def __call__(self, job: Job) -> Result:
        shape = UPDATE_SHAPES[below(len(UPDATE_SHAPES), job.seed, "large", job.client, job.index)]
        local = self._local(job, shape)
        rule, dtype = job.work.rule or PLAIN_RULE, job.base.dtype
        extras = {name: self._long(length, dtype, job, name) for name, length in rule.uploads(self.layout).items()}
        memory = {name: self._long(self.layout.num_params, dtype, job, name) for name in rule.memory}
        return Result(job.ticket, local, job.num_examples, 1, extras, memory)

    def _local(self, job: Job, shape: str) -> Tensor:
        n, longest = self.layout.size, 0.99 * largest_norm(job.base.dtype)  # not 1: a norm is rounded too
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
        for a, b in self.layout.counters:
            local[a:b] = job.base[a:b] + 1
        return local

    def _long(self, length: int, dtype: torch.dtype, job: Job, name: str) -> Tensor:
        """Every entry alike but for its sign."""
        signs = [1.0 - 2.0 * below(2, job.seed, name, job.client, job.index, i) for i in range(length)]
        return torch.tensor(signs, dtype=dtype).mul_(0.99 * largest_norm(dtype) / max(1, length) ** 0.5)


def find_not_finite(held: Mapping[str, Any]) -> str | None:
    """The name of the first value that holds a number that is not finite, tensors and numbers however deep."""
    for name, value in held.items():
        table = TensorTable()
        tree = pack(value, table.put)
        if not all(bool(tensor.isfinite().all()) for tensor in table.tensors) or not _plain(tree):
            return name
    return None


def saved_fields(state: Any) -> dict[str, Any]:
    """What a state holds by name, without what comes from `init`."""
    held = {f.name: getattr(state, f.name) for f in fields(state)}
    return {name: value for name, value in held.items() if not callable(value) and not isinstance(value, Layout)}


def _plain(tree: Any) -> bool:
    try:
        dumps(tree, allow_nan=False)
    except ValueError:
        return False
    return True
