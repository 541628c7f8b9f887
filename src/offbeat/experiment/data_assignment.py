"""Assignment of examples to the clients of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from offbeat.core.computed_rows import evenly_spaced
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import client_label
from offbeat.scenario import Stream, partition
from offbeat.scenario.data import Dataset, load
from offbeat.scenario.partition import Natural

MAX_SHOWN_CLIENTS = 2000  # limit of clients in a heat map


@dataclass(frozen=True)
class ClassCounts:
    """Numbers of training examples by client and class."""

    clients: Sequence[int]
    counts: Tensor  # clients × classes; one column if the data has no classes
    names: Mapping[int, str] = field(default_factory=dict)  # of the clients that have one

    def client_labels(self) -> list[str]:
        """Return the label of each client."""
        return [client_label(client, self.names) for client in self.clients]

    def class_labels(self) -> list[str]:
        """Return the label of each class."""
        return ["all"] if self.counts.shape[1] == 1 else [str(number) for number in range(self.counts.shape[1])]


def assign_examples(experiment: Experiment, data: Dataset) -> Sequence[Tensor]:
    """Return the indices of each client's examples."""
    return experiment.partition.split(data.y_train, experiment.clients, experiment.seed_of("partition"), data.groups)


def owner_names(experiment: Experiment, data: Dataset, assigned: Sequence[Tensor]) -> dict[int, str]:
    """Return the name of each client's owner if clients are owners of data."""
    if data.groups is None or not isinstance(experiment.partition, Natural):
        return {}
    return {client: data.group_names[int(data.groups[rows[0]])] for client, rows in enumerate(assigned)}


def training_rows(experiment: Experiment, data: Dataset) -> Sequence[Tensor]:
    """Return the indices of each client's training examples."""
    return experiment.split.rows_of_part("train", experiment.seed_of("partition"), assign_examples(experiment, data))


def count_classes(experiment: Experiment) -> ClassCounts:
    """Count training examples by client and class, for evenly spaced clients if there are very many."""
    data = load(experiment.data)
    rows = training_rows(experiment, data)
    clients = evenly_spaced(len(rows), MAX_SHOWN_CLIENTS)
    counts = partition.class_counts(data.y_train, [rows[client] for client in clients], data.num_classes)
    return ClassCounts(clients, counts, owner_names(experiment, data, assign_examples(experiment, data)))


def arrival_order(streaming: Stream, seed: int, y: Tensor, client: int, rows: Tensor) -> Tensor:
    """Return the indices of a client's examples in the order of arrival."""
    labels = y[rows] if y.dim() == 1 else None  # masks and signals are not classes
    return streaming.order(seed, client, rows, labels)
