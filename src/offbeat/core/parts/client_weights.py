"""Client weights p_k over all clients known so far: by examples (n_k / n), equal (1 / N), or none (1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from offbeat.core.protocol import ClientReady, Event, UpdateArrived

ClientWeight = Literal["examples", "equal"]


@dataclass(slots=True)
class Census:
    """How many examples each client has, as last heard. Newcomers count from when they appear."""

    examples: dict[int, int] = field(default_factory=dict)
    total: int = 0

    @staticmethod
    def of(clients: Mapping[int, int], client_weight: str | None) -> Census:
        """Nothing is counted, and nothing kept, where no weight is asked for."""
        return Census(dict(clients), sum(clients.values())) if client_weight else Census()

    def hear(self, event: Event, client_weight: str | None) -> None:
        if client_weight and isinstance(event, (ClientReady, UpdateArrived)):
            self.total += event.num_examples - self.examples.get(event.client, 0)
            self.examples[event.client] = event.num_examples

    def weight(self, client: int, client_weight: str | None) -> float:
        if client_weight is None:
            return 1.0
        return self.examples[client] / self.total if client_weight == "examples" else 1.0 / len(self.examples)
