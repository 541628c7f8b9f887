"""The state that nearly every strategy has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from offbeat.core.protocol import Commit, World
from offbeat.core.vector import Layout


@dataclass(slots=True, kw_only=True)
class ServerState:
    """Model, version, layout and seed; the state of a strategy inherits from this and adds its own fields."""

    model: Tensor
    version: int
    layout: Layout
    seed: int = 0

    @classmethod
    def of(cls, world: World, **fields: Any) -> Self:
        """Create the initial state; `fields` are the strategy's own fields without a default."""
        return cls(model=world.model, version=0, layout=world.layout, seed=world.seed, **fields)

    def publish(self, model: Tensor) -> Commit:
        """Store and commit the next version; the tensor must not change from now on."""
        self.model = model
        self.version += 1
        return Commit(model)
