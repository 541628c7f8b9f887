"""How good models are for whom: every client on its own examples, groups of clients on all of theirs together, and the
mean over clients that papers with a test part for each of them report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from offbeat.core.errors import require
from offbeat.training.client_data import ClientData, Pair
from offbeat.training.evaluation import Evaluator

SLOWEST, ACTIVE, STRAGGLERS, SLOW_CLASSES = "slowest", "active", "stragglers", "slow_classes"  # client groups
EVERYONE = "all"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """When every client is evaluated on its own examples, and on how many: by default at the end of a run."""

    every: int = 0  # also at every so many points of the evaluation grid; 0: at the end only
    clients: int = 2000  # at most, evenly spaced over all of them: a million would take longer than the run
    examples: int = 1000  # of each client at most, evenly spaced over its own; 0: no survey at all
    # this share of the clients, the fastest, and whoever is as fast as they, are active; the rest are stragglers
    active: float = 0.5

    def __post_init__(self) -> None:
        require(self.every >= 0, f"survey.every = {self.every}: must be 0 (at the end only) or more")
        few = f"survey.clients = {self.clients}"
        require(self.clients >= 1, f"{few}: at least 1 is asked; survey.examples = 0 is no survey")
        require(self.examples >= 0, f"survey.examples = {self.examples}: must be 0 (no survey) or more")
        require(0 < self.active < 1, f"survey.active = {self.active}: a share, between 0 and 1")


@dataclass(frozen=True)
class Surveyor:
    """surveyor(model_of) -> (client -> metrics, "metric/group" -> value). The group "all" is everyone who is asked."""

    evaluator: Evaluator
    data: ClientData
    groups: Mapping[str, Sequence[int]]
    examples: int
    clients: Sequence[int] | None = None  # who is asked; None: everyone
    facts: Mapping[str, str] = field(default_factory=dict)  # what a reader of the values has to know

    def __call__(self, model_of: Callable[[int], Tensor]) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
        asked, rows_of = _asked(self.data, self.clients), self.evaluator.rows
        rows = {client: rows_of(model_of(client), *self._examples(client)) for client in asked}
        groups: dict[str, float] = {}
        for name, members in {EVERYONE: list(rows), **self.groups}.items():
            values = self.evaluator.values(torch.cat([rows[client] for client in members]))
            groups |= {f"{metric}/{name}": value for metric, value in values.items()}
        return {client: self.evaluator.values(r) for client, r in rows.items()}, groups

    def _examples(self, client: int) -> Pair:
        held = self.data.size(client)
        taken = min(held, self.examples)
        return self.data.take(client, torch.arange(taken) * held // taken)  # evenly spaced


@dataclass(frozen=True)
class OwnTests:
    """own(model_of) -> the mean over clients of each metric, each client's model on all its test examples.

    Clients count alike, however many examples they have. Where a value is nan for one client, so is the mean.
    """

    evaluator: Evaluator
    data: ClientData
    clients: Sequence[int] | None = None  # who is asked; None: everyone
    # client -> the model, what it gave
    _known: dict[int, tuple[Tensor, Tensor]] = field(init=False, repr=False, default_factory=dict)

    def __call__(self, model_of: Callable[[int], Tensor]) -> dict[str, float]:
        rows = [self._rows(client, model_of(client)) for client in _asked(self.data, self.clients)]
        each = [self.evaluator.values(r) for r in rows]
        means = {name: fmean(values[name] for values in each) for name in each[0]}
        return means | self.evaluator.mixed(torch.cat(rows))

    def _rows(self, client: int, model: Tensor) -> Tensor:
        """A published model never changes, so the same tensor is not evaluated again."""
        known = self._known.get(client)
        if known is None or known[0] is not model:
            examples = self.data.take(client, torch.arange(self.data.size(client)))
            known = self._known[client] = (model, self.evaluator.rows(model, *examples))
        return known[1]


def _asked(data: ClientData, clients: Sequence[int] | None) -> Iterable[int]:
    return data.num_examples if clients is None else clients
