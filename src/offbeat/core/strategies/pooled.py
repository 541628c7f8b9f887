"""
Paper:    Chen et al., "Asynchronous Online Federated Learning for Edge Devices with Non-IID Data", IEEE BigData 2020
          (its Global).
Follows:  Section V.B: all training data in one place, one machine, mini-batches, the same architecture.
Notation: w -> model.
Deviates: 1. The paper does not state the speed of that machine: it takes the mean seconds per step of the clients, with
             their jitter and without a network. The experiment builds this world of one client because of `pooled`.
          2. If the world has several clients, the model is trained by one client at a time, drawn uniformly.
          3. One job is defined by the training section, with an epoch over all data; each job is committed.
          4. All data is available from the start, even where it arrives over time at the clients.
Checked:  tests/strategies/test_local_and_global.py (hand-worked; equal to a plain loop over all data), the laws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.core.about import About
from offbeat.core.parts.selection import Seated, serve
from offbeat.core.protocol import Action, Event, LocalWork, UpdateArrived, World


@dataclass(frozen=True, kw_only=True)
class Global:
    about: ClassVar[About] = About("alone", keeps="all data, pooled", uploads="its data, once")
    pooled: ClassVar[bool] = True  # the experiment builds one client that holds all data

    work: LocalWork = LocalWork()

    def init(self, world: World) -> Seated:
        """Return the state at the start of a run."""
        return Seated.of(world)

    def on_event(self, state: Seated, event: Event) -> list[Action]:
        """Record an event in the state, and return the actions that it causes."""
        actions: list[Action] = [state.publish(event.local)] if isinstance(event, UpdateArrived) else []
        return actions + serve(state, event, 1, self.work)

    def model_for(self, state: Seated, client: int) -> Tensor:
        return state.model
