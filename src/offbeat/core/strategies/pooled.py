"""
Paper:    Chen et al., "Asynchronous Online Federated Learning for Edge Devices with Non-IID Data", IEEE BigData 2020
          (its Global).
Follows:  section V.B: all training data in one place, one machine, mini-batches, the same architecture.
Notation: w -> model.
Deviates: 1. the paper does not say how fast that machine is: it takes the mean seconds per step of the clients, with
             their jitter and without any network. The experiment builds that world of one client because of `pooled`.
          2. given a world of several clients all the same, the model goes from one to the next, one at a time, drawn
             uniformly.
          3. one job is what the training section says, an epoch being one over all data; each one is committed.
          4. all data is there from the start, also where it arrives over time at the clients.
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
    pooled: ClassVar[bool] = True  # the experiment gives it one client that holds everything

    work: LocalWork = LocalWork()

    def init(self, world: World) -> Seated:
        return Seated.of(world)

    def on_event(self, state: Seated, event: Event) -> list[Action]:
        actions: list[Action] = [state.publish(event.local)] if isinstance(event, UpdateArrived) else []
        return actions + serve(state, event, 1, self.work)

    def model_for(self, state: Seated, client: int) -> Tensor:
        return state.model
