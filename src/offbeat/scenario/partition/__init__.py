"""Partitions: the assignment of examples to clients. PARTITIONS lists them by name.

An example has at most one client, except in `draws`. A client's examples are in increasing order.
"""

from __future__ import annotations

from offbeat.scenario.partition.assignment import Partition, Split, class_counts
from offbeat.scenario.partition.label_skew import (
    ClassSubsets,
    Dirichlet,
    DirichletEqual,
    Disjoint,
    DualDirichlet,
    MainClass,
    Pieces,
)
from offbeat.scenario.partition.random_and_natural import Draws, Iid, Natural
from offbeat.scenario.scenario_settings import former_names

__all__ = [
    "PARTITIONS", "Partition", "class_counts", "ClassSubsets", "Dirichlet", "DirichletEqual", "Disjoint", "Draws",
    "DualDirichlet", "Iid", "MainClass", "Natural", "Pieces", "Split",
]  # fmt: skip

PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "dirichlet-equal": DirichletEqual,
    "dual-dirichlet": DualDirichlet,
    "classes": ClassSubsets,
    "main-class": MainClass,
    "pieces": Pieces,
    "disjoint": Disjoint,
    "natural": Natural,
    "draws": Draws,
}

__getattr__ = former_names(__name__, {"Classes": "ClassSubsets"})
