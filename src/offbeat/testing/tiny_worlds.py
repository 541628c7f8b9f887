"""Tiny worlds: a model with nine parameters, a few clients, and real local training.

All numbers are multiples of 1/16 and all rates powers of two, so local training is exact in float64. Results have the
same bits on every machine and can be computed by hand.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from offbeat.core.draws import below
from offbeat.core.jobs import Job, Rate, Result
from offbeat.core.local_rules import PLAIN_RULE, RuleCarry
from offbeat.core.protocol import Gradient, LocalJob, Phase, World
from offbeat.core.strategy_contract import contract_of
from offbeat.core.vector import Kind, Layout, Slice
from offbeat.training import descend, make_local_job

Named = tuple[str, tuple[int, ...], Kind]
PARAMS: tuple[Named, ...] = (
    ("body.weight", (2, 2), "param"),
    ("body.bias", (2,), "param"),
    ("head.weight", (1, 2), "param"),
    ("head.bias", (1,), "param"),
)
STATISTICS: tuple[Named, ...] = (("norm.mean", (2,), "buffer"), ("norm.seen", (), "counter"))


def layout_of(entries: Iterable[Named]) -> Layout:
    """Build a layout from consecutive (name, shape, kind)."""
    slices: list[Slice] = []
    end = 0
    for name, shape, kind in entries:
        slices.append(Slice(name, shape, end, end + prod(shape), kind))
        end += prod(shape)
    return Layout(tuple(slices))


def tiny_layout(buffers: bool = False, in_the_middle: bool = False) -> Layout:
    """Return the layout of the tiny model, with statistics at the end (as in `Layout.of`) or between params."""
    if not buffers:
        return layout_of(PARAMS)
    return layout_of((*PARAMS[:2], *STATISTICS, *PARAMS[2:]) if in_the_middle else (*PARAMS, *STATISTICS))


def sixteenths(count: int, dtype: torch.dtype, seed: int, purpose: str, *counters: int) -> Tensor:
    """Draw `count` multiples of 1/16 in [-1, 1]."""
    return torch.tensor([(below(33, seed, purpose, *counters, i) - 16) / 16 for i in range(count)], dtype=dtype)


def tiny_world(
    clients: int = 3,
    dtype: torch.dtype = torch.float64,
    buffers: bool = False,
    seed: int = 0,
    *,
    in_the_middle: bool = False,
    probe: Callable[[Tensor], Tensor] | None = None,
) -> World:
    """Build a world with clients 0, 1, ... that have 10, 20, ... examples."""
    layout = tiny_layout(buffers, in_the_middle)
    model = sixteenths(layout.size, dtype, seed, "tiny model")
    for a, b in layout.counters:
        model[a:b] = 0.0
    examples = MappingProxyType({client: 10 * (client + 1) for client in range(clients)})
    return World(model=model, layout=layout, clients=examples, seed=seed, probe=probe)


def hand_world(model: Sequence[float], clients: Mapping[int, int], *, statistics: bool = False, seed: int = 0) -> World:
    """Build a float64 world for hand-worked numbers: params `w`, and with `statistics` a buffer and a counter."""
    entries: list[Named] = [("w", (len(model) - 2 * statistics,), "param")]
    if statistics:
        entries += [("mean", (1,), "buffer"), ("seen", (), "counter")]
    return World(model=torch.tensor(model, dtype=torch.float64), layout=layout_of(entries), clients=clients, seed=seed)


def with_probe(world: World, strategy: object) -> World:
    """Return the world with a probe built from the strategy's `sketcher`, if it has one and the world has none."""
    sketcher = contract_of(strategy).sketcher
    if sketcher is None or world.probe is not None:
        return world
    layout, seed = world.layout, world.seed
    centre = sixteenths(layout.num_params, world.model.dtype, seed, "tiny calibration")

    def probe(vector: Tensor) -> Tensor:
        """Sketch the sensitivities of a model, measured with one calibration example."""
        w = layout.trainable(vector)
        g = w - centre  # gradient of one calibration example with the loss 0.5 ||w - centre||^2
        s = w if sketcher.signal == "parameters" else (g * w - g.square() * w.square() / 2).abs()
        sketch: Tensor = sketcher.sketch(s, seed)
        return sketch

    return replace(world, probe=probe)


class CopyingStore(UserDict[int, Tensor]):
    """A store that copies tensors in and out, as a store on disk does."""

    def __init__(self) -> None:
        super().__init__()

    def __getitem__(self, client: int) -> Tensor:
        return self.data[client].clone()

    def __setitem__(self, client: int, value: Tensor) -> None:
        self.data[client] = value.clone()


@dataclass(frozen=True, slots=True)
class Sgd:
    """Plain SGD: w := w - lr d."""

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        """Move w in place."""
        if isinstance(lr, Tensor):
            w.sub_(lr * d)
        else:
            w.add_(d, alpha=-lr)


@dataclass(frozen=True, slots=True)
class TinyClients:
    """Clients that train: client k minimizes 0.5 ||w - c_k||^2 with a few SGD steps and the rule of the job.

    Calling it with a job returns the result. Buffers change by at most 1/2, counters count steps.
    """

    layout: Layout
    lr: float = 0.125
    steps: int = 2  # of a job that names none, and of one epoch
    probe: Callable[[Tensor], Tensor] | None = None  # World.probe

    def __call__(self, job: Job) -> Result:
        rule, local_job = job.work.rule or PLAIN_RULE, make_tiny_job(self, job)
        centre = optimum(job.seed, job.client, self.layout.num_params, job.base.dtype)
        w = local_job.start.clone()

        def batches(phase: Phase) -> Iterable[Gradient]:
            """Return the gradient of each step of a phase."""
            return [lambda point: point - centre] * self.count(phase)

        steps, carry = descend(rule, local_job, rule.phases(job.work), w, batches, Sgd)
        return self.end(job, local_job, w, steps, carry)

    def end(self, job: Job, local_job: LocalJob, w: Tensor, steps: int, carry: RuleCarry) -> Result:
        """Build the result of a job whose training ended at w."""
        rule = job.work.rule or PLAIN_RULE
        local = self.layout.with_trainable(job.base, w)
        for a, b in self.layout.buffers:
            local[a:b] += sixteenths(b - a, local.dtype, job.seed, "tiny buffer", job.client, job.index) / 2
        for a, b in self.layout.counters:
            local[a:b] += steps
        extras, memory = rule.end(local_job, local, carry)
        return Result(job.ticket, local, job.num_examples, steps, extras, memory)

    def count(self, phase: Phase) -> int:
        """Return the number of steps of a phase."""
        return phase.steps if phase.steps is not None else self.steps * (phase.epochs or 1)

    def features(self, job: Job, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return four examples: client-specific numbers plus the first entries of the model, and cyclic labels."""
        matrices = [s.shape for s in self.layout.of_kind("param") if len(s.shape) >= 2]
        classes, width = (matrices[-1][0], prod(matrices[-1][1:])) if matrices else (1, 1)
        features = sixteenths(4 * width, vector.dtype, job.seed, "tiny features", job.client).view(4, width)
        moved = self.layout.trainable(vector)[..., :width]
        return features + moved.unsqueeze(-2), (torch.arange(4) % classes).expand(*vector.shape[:-1], 4)


def make_tiny_job(clients: TinyClients, job: Job) -> LocalJob:
    """Return the view of a job that its rule receives."""
    lr = clients.lr if job.work.lr is None else job.work.lr
    return make_local_job(job, clients.layout, lr, clients.probe, lambda vector: clients.features(job, vector))


@lru_cache(maxsize=1024)
def optimum(seed: int, client: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return c_k, the minimum of the client's loss; the tensor is cached, do not change it."""
    return sixteenths(size, dtype, seed, "tiny optimum", client)
