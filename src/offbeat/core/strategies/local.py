"""
Paper:    Chen et al., "Asynchronous Online Federated Learning for Edge Devices with Non-IID Data", IEEE BigData 2020
          (its Local-S).
Follows:  section V.B: every client trains a copy of its own on its own data, and nothing is sent.
Notation: w_k -> the client's own model, kept here in its place.
Deviates: 1. the paper's report is the mean over clients on each client's own test part: the experiment's `evaluate:
             clients`. Without it each client's own model is measured on the test data of the experiment, as every other
             method is, and the mean is taken.
          2. there is no global model: nothing is ever committed, and what is exported is the initial model. With it
             every job's version stays 0, so that training.lr_decay never acts.
          3. bytes and server memory are counted as zero: there is no server. The simulation holds the models in its
             place.
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
    model: Tensor  # w_0, where everybody starts
    version: int
    client_models: MutableMapping[int, Tensor]  # w_k of those who have trained


@dataclass(frozen=True, kw_only=True)
class Local:
    about: ClassVar[About] = About("alone", keeps="nothing (the client does)", uploads="nothing")

    work: LocalWork = LocalWork()

    def init(self, world: World) -> State:
        return State(model=world.model, version=0, client_models=world.store("own"))

    def on_event(self, state: State, event: Event) -> list[Action]:
        match event:
            case UpdateArrived():
                state.client_models[event.client] = event.local
            case ClientReady():  # it follows each update of a client that is still there
                return [Dispatch(event.client, self.model_for(state, event.client), self.work)]
        return []

    def model_for(self, state: State, client: int) -> Tensor:
        """The client's own model."""
        own = state.client_models.get(client)
        return state.model if own is None else own
