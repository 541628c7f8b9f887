"""What nearly every server has: a model and its version, the layout they share, and a seed for its draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from offbeat.core.protocol import Commit, World
from offbeat.core.vector import Layout


@dataclass(slots=True, kw_only=True)
class ServerState:
    """A method's own state inherits it, and adds what the method needs."""

    model: Tensor
    version: int
    layout: Layout
    seed: int = 0

    @classmethod
    def of(cls, world: World, **own: Any) -> Self:
        """The state at the beginning; `own` are the fields of the method that have no default."""
        return cls(model=world.model, version=0, layout=world.layout, seed=world.seed, **own)

    def publish(self, model: Tensor) -> Commit:
        """The next version: nobody may change this tensor from now on."""
        self.model = model
        self.version += 1
        return Commit(model)
