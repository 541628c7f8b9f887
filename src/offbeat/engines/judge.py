"""Evaluation on the grid: of the global model, of every client's own where a method shares nothing, or, where the experiment
says so, of every client on its own test examples.

A model is a tensor that never changes once published, so whatever was evaluated last time and is still the same tensor
is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from torch import Tensor

from offbeat.engines.traffic import alone

Evaluate = Callable[[Tensor], Mapping[str, float]]
Values = Mapping[str, float]
ModelOf = Callable[[int], Tensor]  # client -> the model it is to be judged by


class Survey(Protocol):
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
    strategy: Any
    own: Own | None = None  # where given, what counts
    _known: dict[int, tuple[Tensor, Values]] = field(init=False, default_factory=dict)  # id -> the tensor, so that the id stays its own

    def __call__(self, state: Any, model: Tensor, clients: Iterable[int]) -> dict[str, float]:
        """The metrics now; with every client alone, the mean over clients of each one's own model."""
        if self.own is not None:
            return dict(self.own(self.model_of(state, model)))
        if not alone(self.strategy):
            return dict(self._all([model])[0])
        own = self._all([self.strategy.model_for(state, client) for client in clients] or [model])
        return {name: fmean(values[name] for values in own) for name in own[0]}

    def model_of(self, state: Any, model: Tensor) -> ModelOf:
        """A client's own model where the method has such, else the global one."""
        own = getattr(self.strategy, "model_for", None)
        return (lambda client: model) if own is None else (lambda client: own(state, client))

    def _all(self, models: list[Tensor]) -> list[Values]:
        before, self._known = self._known, {}
        for model in models:
            if id(model) not in self._known:
                self._known[id(model)] = before.get(id(model)) or (model, self.evaluate(model))
        return [self._known[id(model)][1] for model in models]
