"""Evaluation on the grid: of the global model, of every client's own where a method shares nothing, or, where the
experiment says so, of every client on its own test examples.

Where clients keep their BatchNorm statistics to themselves the global model is nobody's: it is judged with the
statistics of each client that has any, and the mean is taken.

A model is a tensor that never changes once published, so whatever was evaluated last time and is still the same tensor
is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from torch import Tensor

from offbeat.core.strategy_contract import Contract
from offbeat.core.vector import Layout

Evaluate = Callable[[Tensor], Mapping[str, float]]
Values = Mapping[str, float]
Judged = tuple[Tensor, Tensor | None]  # a model, and the statistics to put into it
ModelOf = Callable[[int], Tensor]  # client -> the model it is to be judged by


class ClientSurvey(Protocol):
    """Evaluates every client's model on the client's own examples."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What a reader of the values has to know."""
        ...

    def __call__(self, model_of: ModelOf) -> tuple[Mapping[int, Values], Values]:
        """(the values of each client, the values of groups of them)"""
        ...


Own = Callable[[ModelOf], Values]  # the mean over clients, each on its own test examples


@dataclass(slots=True)
class Judge:
    evaluate: Evaluate
    contract: Contract
    layout: Layout
    own: Own | None = None  # where given, what counts
    # by ids, with the tensors themselves, so that the ids stay their own
    _known: dict[tuple[int, int], tuple[Judged, Values]] = field(init=False, default_factory=dict)

    def __call__(
        self, state: Any, model: Tensor, clients: Iterable[int], statistics: Mapping[int, Tensor]
    ) -> dict[str, float]:
        """The metrics now. With every client alone: the mean over clients of each one's own model. Where clients keep
        their statistics: the mean over those who have such, of the model with these in it.
        """
        if self.own is not None:
            return dict(self.own(self.model_of(state, model, statistics)))
        judged: list[Judged] = [(model, own) for own in statistics.values()]
        if not self.contract.shares and (of := self.contract.model_for) is not None:
            judged = [(of(state, client), statistics.get(client)) for client in clients]
        found = self._all(judged or [(model, None)])
        return (
            {name: fmean(values[name] for values in found) for name in found[0]} if len(found) > 1 else dict(found[0])
        )

    def of_model(self, model: Tensor) -> dict[str, float]:
        """Of this model and no other, whatever the method."""
        return dict(self._all([(model, None)])[0])

    def model_of(self, state: Any, model: Tensor, statistics: Mapping[int, Tensor]) -> ModelOf:
        """A client's own model where the method has such, else the global one; with the client's own statistics if
        it has any.
        """
        own = self.contract.model_for
        return lambda client: self._whole(model if own is None else own(state, client), statistics.get(client))

    def _whole(self, model: Tensor, statistics: Tensor | None) -> Tensor:
        return model if statistics is None else self.layout.with_statistics(model, statistics)

    def _all(self, judged: list[Judged]) -> list[Values]:
        before, self._known = self._known, {}
        for model, own in judged:
            key = id(model), id(own)
            if key not in self._known:
                self._known[key] = before.get(key) or ((model, own), self.evaluate(self._whole(model, own)))
        return [self._known[id(model), id(own)][1] for model, own in judged]
