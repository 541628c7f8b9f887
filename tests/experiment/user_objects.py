"""Models, data and strategies that a user's script defines, shared by the tests of simulations and comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import offbeat
from offbeat.core.strategies.fedasync import FedAsync


def pair(seed: int = 0, examples: int = 24) -> tuple[Tensor, Tensor]:
    """Draw inputs of five numbers; the label is whether their sum is positive."""
    x = torch.randn(examples, 5, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()


class Rows(Dataset[Any]):
    """A data set that returns one item at a time."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Endless(IterableDataset[Any]):
    """A data set without length."""

    def __iter__(self) -> Any:
        yield from ()


class Versioned(nn.Linear):
    """A module whose state_dict holds more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


class Net(nn.Sequential):
    """A module with BatchNorm and dropout, so that only the same seed gives the same bits."""

    def __init__(self, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            super().__init__(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2))


def net(seed: int = 0) -> nn.Module:
    """Create a module from the generator of torch, whatever the seed."""
    return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.2), nn.Linear(6, 2))


@dataclass(frozen=True, kw_only=True)
class Halves(FedAsync):
    """A strategy that no experiment file can name."""

    alpha: float = 0.5


class Plain:
    """A strategy that is not a dataclass."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self._inner = FedAsync(alpha=alpha)

    def init(self, world: Any) -> Any:
        return self._inner.init(world)

    def on_event(self, state: Any, event: Any) -> Any:
        return self._inner.on_event(state, event)


def smoothed(outputs: Tensor, y: Tensor) -> Tensor:
    """Compute cross entropy with smoothed labels."""
    return nn.functional.cross_entropy(outputs, y, label_smoothing=0.1)


METHODS = {"fedavg": "fedavg", "small": offbeat.FedBuff(k=2), "mine": Halves()}


def same(a: offbeat.Simulation, b: offbeat.Simulation) -> bool:
    """Tell whether two simulations have the same bits."""
    return a.outcome.model.equal(b.outcome.model) and a.trace.digest() == b.trace.digest()
