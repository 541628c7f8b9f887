"""The optional members of a strategy, and their defaults.

A class with only `init` and `on_event` is a complete strategy. It may also define:

| member | default | meaning |
|---|---|---|
| `about: About` | none | printed by `offbeat list strategies`; with `mode="alone"` no model is shared or sent |
| `clients_keep: bool` | False | clients keep the model they sent or received last: sending it again costs no bytes |
| `pooled: bool` | False | the experiment builds one client that holds all data |
| `sketcher: Sketcher` | none | the training package builds `World.probe` and `LocalJob.probe` from it |
| `model_for(state, client)` | global model | the model on which a client is evaluated, if it has its own |
| `finish(state, now)` | no actions | called once at the regular end of a run; may return Commit and Note |

Engines, builders and the test kit call `contract_of` instead of reading these members from the strategy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from offbeat.core.about import About
from offbeat.core.protocol import Action


class Sketcher(Protocol):
    """Computes a short vector from the sensitivities of a model, on client and server (FedPSA)."""

    @property
    def signal(self) -> str:
        """The quantity that is sketched: sensitivity or parameters."""
        ...

    def sketch(self, signal: Tensor, seed: int) -> Tensor:
        """Project the signal to a short vector."""
        ...


ModelFor = Callable[[Any, int], Tensor]  # (state, client) -> the client's own model
Finish = Callable[[Any, float], list[Action]]  # (state, now) -> the last actions of a run


@dataclass(frozen=True, slots=True)
class Contract:
    """The optional members of a strategy, with defaults for those it does not define."""

    shares: bool = True
    clients_keep: bool = False
    pooled: bool = False
    sketcher: Any = None
    model_for: ModelFor | None = None
    finish: Finish | None = None


def contract_of(strategy: object) -> Contract:
    """Collect the optional members of a strategy."""
    about: About | None = getattr(strategy, "about", None)
    return Contract(
        shares=about is None or about.mode != "alone",
        clients_keep=bool(getattr(strategy, "clients_keep", False)),
        pooled=bool(getattr(strategy, "pooled", False)),
        sketcher=getattr(strategy, "sketcher", None),
        model_for=getattr(strategy, "model_for", None),
        finish=getattr(strategy, "finish", None),
    )
