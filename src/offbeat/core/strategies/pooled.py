"""
Paper:    Chen et al., "Asynchronous Online Federated Learning for Edge Devices with Non-IID Data", IEEE BigData 2020
          (its Global).
Follows:  section V.B: all training data in one place, one machine, mini-batches, the same architecture.
Notation: w -> model.
Deviates: 1. the paper does not say how fast that machine is: it takes the mean seconds per step of the clients, without
             any network. The experiment builds that world of one client because of `pooled`.
          2. given a world of several clients all the same, the model goes from one to the next, one at a time, drawn
             uniformly.
          3. one job is what the training section says, an epoch being one over all data; each one is committed.
          4. all data is there from the start, also where it arrives over time at the clients.
Checked:  tests/strategies/test_local_and_global.py (hand-worked; equal to a plain loop over all data), the laws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.core.about import About
from offbeat.core.parts.selection import Seats, next_clients
from offbeat.core.protocol import Action, Commit, Dispatch, Event, LocalWork, UpdateArrived, World


@dataclass(slots=True)
class State:
    model: Tensor
    version: int
    seed: int
    seats: Seats = field(default_factory=Seats)


@dataclass(frozen=True, kw_only=True)
class Global:
    about: ClassVar[About] = About("alone", keeps="all data, pooled", uploads="its data, once")
    pooled: ClassVar[bool] = True  # the experiment gives it one client that holds everything

    work: LocalWork = LocalWork()

    def init(self, world: World) -> State:
        return State(model=world.model, version=0, seed=world.seed)

    def on_event(self, state: State, event: Event) -> list[Action]:
        actions: list[Action] = []
        if isinstance(event, UpdateArrived):
            state.model = event.local
            state.version += 1
            actions = [Commit(state.model)]
        clients, timers = next_clients(state.seats, event, 1, state.seed)
        return [*actions, *timers, *(Dispatch(client, state.model, self.work) for client in clients)]

    def model_for(self, state: State, client: int) -> Tensor:
        return state.model
