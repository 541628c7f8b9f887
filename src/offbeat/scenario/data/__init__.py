"""Data sets, already divided into training and test examples."""

from __future__ import annotations

from collections.abc import Callable

from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.digits import digits

__all__ = ["DATASETS", "Dataset"]

DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits}
