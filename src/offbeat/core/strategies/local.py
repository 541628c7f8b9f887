"""
Paper:    Chen et al., "Asynchronous Online Federated Learning for Edge Devices with Non-IID Data", IEEE BigData 2020
          (its Local-S).
Follows:  Section V.B: every client trains its own copy of the model on its own data, and nothing is sent.
Notation: w_k -> the client's own model, stored in state.client_models.
Deviates: 1. The paper reports the mean over clients, each on its own test part: set `evaluate: clients` in the
             experiment. Otherwise each client's model is evaluated on the experiment's test data, as for every other
             method, and the mean is reported.
          2. There is no global model: nothing is committed, and the exported model is the initial one. The version of
             all jobs stays 0, so training.lr_decay has no effect.
          3. Bytes and server memory count as zero, because there is no server. The simulation stores the models for the
             clients.
Checked:  tests/strategies/test_local_and_global.py (hand-worked), the laws.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.core.about import About
from offbeat.core.protocol import Action, ClientReady, Dispatch, Event, LocalWork, UpdateArrived, World


@dataclass(slots=True)
class State:
    """The initial model and the model of each client."""

    model: Tensor  # w_0, the initial model of all clients
    version: int
    client_models: MutableMapping[int, Tensor]  # w_k of the clients that have trained


@dataclass(frozen=True, kw_only=True)
class Local:
    about: ClassVar[About] = About("alone", keeps="nothing (the client does)", uploads="nothing")

    work: LocalWork = LocalWork()

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State(model=world.model, version=0, client_models=world.store("own"))

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Keep the model that a client trained, and let the client continue from it."""
        match event:
            case UpdateArrived():
                state.client_models[event.client] = event.local
            case ClientReady():  # follows each update if the client is still reachable
                return [Dispatch(event.client, self.model_for(state, event.client), self.work)]
        return []

    def model_for(self, state: State, client: int) -> Tensor:
        """Return the client's own model."""
        return state.client_models.get(client, state.model)
