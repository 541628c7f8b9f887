"""What an engine takes from a strategy beyond `init` and `on_event`: all of it optional, all of it here.

A plain class with only those two is a whole strategy. What else its class may say, and what holds where it says
nothing:

| member | default | means |
|---|---|---|
| `about: About` | none | what `offbeat list strategies` prints; `mode="alone"`: nothing is shared, nothing travels |
| `clients_keep: bool` | False | clients keep the model they sent or were sent last: sending it again costs no bytes |
| `pooled: bool` | False | the experiment builds one client that holds all data |
| `sketcher: Sketcher` | none | the client package makes `World.probe` and `LocalJob.probe` from it |
| `model_for(state, client)` | the model | what a client is judged by, where it has a model of its own |
| `finish(state, now)` | nothing | asked once at an orderly end of a run, for Commit and Note |

Engines, builders and the test kit ask `contract_of`, never the strategy itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from offbeat.core.about import About
from offbeat.core.protocol import Action


class Sketcher(Protocol):
    """How a model is turned into a short vector: what FedPSA's two halves compare."""

    @property
    def signal(self) -> str: ...
    def sketch(self, signal: Tensor, seed: int) -> Tensor: ...


ModelFor = Callable[[Any, int], Tensor]  # (state, client) -> the client's own model
Finish = Callable[[Any, float], list[Action]]  # (state, now) -> its last requests


@dataclass(frozen=True, slots=True)
class Contract:
    """The optional half of a strategy, with every default filled in."""

    shares: bool = True
    clients_keep: bool = False
    pooled: bool = False
    sketcher: Any = None
    model_for: ModelFor | None = None
    finish: Finish | None = None


def contract_of(strategy: object) -> Contract:
    about: About | None = getattr(strategy, "about", None)
    return Contract(
        shares=about is None or about.mode != "alone",
        clients_keep=bool(getattr(strategy, "clients_keep", False)),
        pooled=bool(getattr(strategy, "pooled", False)),
        sketcher=getattr(strategy, "sketcher", None),
        model_for=getattr(strategy, "model_for", None),
        finish=getattr(strategy, "finish", None),
    )
