"""The model, the data and how they are trained: plain PyTorch."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Handwritten digits of 8×8."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.hidden(x)))
        return out


def load_data(partition: int, partitions: int, batch: int) -> tuple[DataLoader, DataLoader]:
    """Every so many-th picture; a fifth of them is for testing."""
    pictures, labels = load_digits(return_X_y=True)
    x = torch.tensor(pictures[partition::partitions] / 16, dtype=torch.float32)
    y = torch.tensor(labels[partition::partitions])
    cut = len(y) * 4 // 5
    train = TensorDataset(x[:cut], y[:cut])
    return DataLoader(train, batch, shuffle=True), DataLoader(TensorDataset(x[cut:], y[cut:]), batch)


def train(net: Net, loader: DataLoader, epochs: int, lr: float) -> float:
    """Returns the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / len(loader)


def test(net: Net, loader: DataLoader) -> tuple[float, float]:
    """(loss, accuracy)"""
    net.eval()
    loss, right, seen = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            outputs = net(x)
            loss += cross_entropy(outputs, y, reduction="sum").item()
            right += int((outputs.argmax(1) == y).sum())
            seen += len(y)
    return loss / seen, right / seen
