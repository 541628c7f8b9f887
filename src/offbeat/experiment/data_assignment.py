"""Which examples each client of an experiment holds."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from offbeat.core.computed_rows import evenly
from offbeat.experiment.partition_heatmap import Held
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario import partition
from offbeat.scenario.data import Dataset, load
from offbeat.scenario.partition import Natural
from offbeat.scenario.streaming import Stream

SHOWN = 2000  # clients at most in a picture of who holds what


def deal(experiment: Experiment, data: Dataset) -> Sequence[Tensor]:
    """For each client the numbers of its examples."""
    return experiment.partition.split(data.y_train, experiment.clients, experiment.seed_of("partition"), data.groups)


def owners(experiment: Experiment, data: Dataset, dealt: Sequence[Tensor]) -> dict[int, str]:
    """Client -> what its owner is called, where each client is one."""
    if data.groups is None or not isinstance(experiment.partition, Natural):
        return {}
    return {client: data.group_names[int(data.groups[rows[0]])] for client, rows in enumerate(dealt)}


def split(experiment: Experiment, data: Dataset) -> Sequence[Tensor]:
    """For each client the numbers of those it trains on."""
    return experiment.split.of("train", experiment.seed_of("partition"), deal(experiment, data))


def held(experiment: Experiment) -> Held:
    """Who trains on what; of very many clients some, evenly spaced."""
    data = load(experiment.data)
    rows = split(experiment, data)
    clients = evenly(len(rows), SHOWN)
    counts = partition.class_counts(data.y_train, [rows[client] for client in clients], data.num_classes)
    return Held(clients, counts, owners(experiment, data, deal(experiment, data)))


def arriving(streaming: Stream, seed: int, y: Tensor, client: int, rows: Tensor) -> Tensor:
    """A client's examples in the order in which they arrive."""
    labels = y[rows] if y.dim() == 1 else None  # masks and signals are no classes
    return streaming.order(seed, client, rows, labels)
