"""Jobs that are ragged in every way, for whoever trains them together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.core.strategies.aso_fed import DecayedGradients
from offbeat.core.strategies.fed_ogd import Orthogonal, OrthogonalDifference
from offbeat.core.strategies.fedpac.halves import Halves, HeadThenBody
from offbeat.core.strategies.fedpsa.sketch import Sketched
from offbeat.core.strategies.gradma import Corrected
from offbeat.core.vector import Layout, flatten
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training

SIZES = (37, 24, 50, 33, 12)  # with batches of 8: a last one of 5, none, 2, one merged into the one before, 4


class Net(nn.Module):
    """BatchNorm (a bias before it would have gradients that are nothing but rounding), dropout of entries and
    channels, a head.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Dropout2d(0.2),
            nn.Flatten(),
            nn.Linear(48, 6),
            nn.Dropout(0.3),
        )
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.body(x)))
        return out


def trainer_of(training: Training, module: nn.Module | None = None) -> Trainer:
    torch.manual_seed(0)
    module = (Net() if module is None else module).double()
    pairs = [(torch.randn(n, 1, 6, 6, dtype=torch.float64), torch.randint(0, 4, (n,))) for n in SIZES]
    layout = Layout.of(module)
    matrix = torch.randn(5, layout.num_params, dtype=torch.float64)
    return Trainer(module, ClientData.separate(pairs), training, probe=lambda vector: matrix @ layout.trainable(vector))


def jobs_of(trainer: Trainer, rule: LocalRule | None, sent: Any = None, kept: Any = None) -> list[Job]:
    """Of different bases, rates, numbers of steps and examples, and indices; `sent`: extras, `kept`: memory, by name
    or as a function.
    """
    extras, memory = extras_of(trainer, sent), memory_of(trainer, kept)
    base = flatten(trainer.binding.module)
    bases = [
        trainer.binding.layout.with_trainable(base, trainer.binding.layout.trainable(base) * (1 + 0.01 * i))
        for i in range(5)
    ]
    works = [
        LocalWork(epochs=1, lr=0.05, rule=rule),
        LocalWork(steps=7, lr=0.1, rule=rule),
        LocalWork(rule=rule),
        LocalWork(steps=2, lr=0.02, rule=rule),
        LocalWork(epochs=3, rule=rule),
    ]
    arrived = [size - (i == 2) * 11 for i, size in enumerate(SIZES)]
    jobs = []
    for i, work in enumerate(works):
        given = replace(work, extras={} if extras is None else extras(i))
        jobs.append(Job(10 + i, i, i % 3, bases[i], i, given, arrived[i], {} if memory is None else memory(i), seed=3))
    return jobs


def extras_of(trainer: Trainer, sent: Any) -> Any:
    if sent is None or callable(sent):
        return sent
    if sent == "basis":
        return lambda i: {"basis": vectors(trainer.binding.layout.num_params, i)}

    def prototypes(i: int) -> dict[str, Tensor]:
        known = torch.tensor([1.0, 1.0, 0.0, float(i % 2)], dtype=torch.float64)
        return {"prototypes": vectors(24, i).view(4, 6), "known": known}

    return prototypes


def memory_of(trainer: Trainer, kept: Any) -> Any:
    if kept is None or callable(kept):
        return kept
    size = trainer.binding.layout.num_params
    return lambda i: {key: 0.1 * vectors(size, 100 + i) for key in kept} if i else {}


def agree(stacked: list[Result], alone: list[Result], tolerance: float = 1e-12) -> None:
    for one, other in zip(stacked, alone, strict=True):
        assert (one.ticket, one.num_examples, one.steps) == (other.ticket, other.num_examples, other.steps)
        torch.testing.assert_close(one.local, other.local, rtol=tolerance, atol=tolerance)
        assert one.local.untyped_storage().nbytes() == one.local.nbytes  # no row keeps the stack alive
        for name in ("extras", "memory"):
            first, second = getattr(one, name), getattr(other, name)
            assert first.keys() == second.keys()
            for key in first:
                torch.testing.assert_close(first[key], second[key], rtol=tolerance, atol=tolerance)


def vectors(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


BODY = ("body.0.weight", *(f"body.{layer}.{kind}" for layer in (1, 5) for kind in ("weight", "bias")))
SPLIT = Halves("head", ("head.weight", "head.bias"), BODY, 4, 6)
RULES: dict[str, Any] = {
    "plain": (None, None, None),
    "proximal": (Proximal(mu=0.3), None, None),
    "decayed gradients": (DecayedGradients(beta=0.4, lam=0.5), None, ("vprev", "h")),
    "sketched": (Sketched(k=5), None, None),
    "orthogonal": (Orthogonal(), "basis", None),
    "orthogonal difference": (OrthogonalDifference(), "basis", ("previous",)),
    "corrected": (Corrected(), None, None),
    "head, then body": (HeadThenBody(split=SPLIT, lam=0.7, head_epochs=1, head_lr=0.1), "prototypes", None),
}
