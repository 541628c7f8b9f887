"""Four regions and their wines: 13 measurements of a bottle, and which of three cultivars it is of."""

import csv
from pathlib import Path

import torch
from torch import Tensor, nn

SITES = Path(__file__).parent / "sites"  # a table a site

# What is usual for a measurement, and how far bottles are from it: agreed on beforehand, since nobody sees all of them.
USUAL = [13.0, 2.3, 2.4, 19.5, 100.0, 2.3, 2.0, 0.36, 1.6, 5.0, 0.96, 2.6, 750.0]
SPREAD = [0.8, 1.1, 0.27, 3.3, 14.0, 0.6, 1.0, 0.12, 0.6, 2.3, 0.23, 0.7, 310.0]


def load() -> dict[str, tuple[Tensor, Tensor]]:
    """Site -> inputs and labels; every fifth bottle of each is for the test."""
    return {path.stem: read(path) for path in sorted(SITES.glob("*.csv"))}


def read(path: Path) -> tuple[Tensor, Tensor]:
    with open(path, newline="") as file:
        rows = torch.tensor([[float(cell) for cell in row] for row in list(csv.reader(file))[1:]])
    return (rows[:, :-1] - torch.tensor(USUAL)) / torch.tensor(SPREAD), rows[:, -1].long()


class Net(nn.Module):
    """`input_shape` and `num_outputs` are told by the data; `hidden` is a setting: --set model.hidden=32."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hidden: int = 16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(*input_shape, hidden), nn.Tanh(), nn.Linear(hidden, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
