"""Data sets, already divided into training and test examples."""

from __future__ import annotations

from collections.abc import Callable

from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.digits import digits
from offbeat.scenario.data.idx import fashion_mnist, mnist

__all__ = ["DATASETS", "Dataset"]

DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits, "mnist": mnist, "fashion-mnist": fashion_mnist}
