"""The contract between engines and strategies: events are facts, actions are requests.

Rule 1: The engine owns time, randomness, devices, files and the network. A strategy receives events and returns
actions; it changes nothing but its own state.
Rule 2: An illegal action raises ProtocolError, and the engine carries out none of the actions in that answer.

Times are seconds as floats. Vectors are flat (see `core.vector`). `delta` is always local - base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from offbeat.core.errors import ProtocolError
from offbeat.core.local_rules import Gradient, LocalJob, LocalRule, LocalWork, Phase
from offbeat.core.vector import Layout, Slice

__all__ = [
    "Action", "CancelTimer", "ClientLost", "ClientReady", "Commit", "Dispatch", "Event", "Gradient", "Layout",
    "LocalJob", "LocalRule", "LocalWork", "Note", "Phase", "ProtocolError", "Reject", "SetTimer", "Slice", "State",
    "Stop", "Strategy", "TimerFired", "UpdateArrived", "World",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientReady:
    """An idle, reachable client can take work; the strategy may dispatch to it now or later."""

    now: float
    client: int
    num_examples: int


@dataclass(frozen=True, slots=True)
class UpdateArrived:
    """An update of a client arrived; `base` is the vector it was sent, `local` the vector it returned."""

    now: float
    client: int
    ticket: int
    base_version: int
    base: Tensor
    local: Tensor
    num_examples: int  # number of examples it trained on
    steps: int
    started: float  # time of the dispatch
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientLost:
    """A client will not answer its ticket; with ticket None, an idle client left."""

    now: float
    client: int
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer of the strategy fired."""

    now: float
    key: str


Event = ClientReady | UpdateArrived | ClientLost | TimerFired


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send a model to an idle client, which trains as `work` says."""

    client: int
    model: Tensor
    work: LocalWork = LocalWork()


@dataclass(frozen=True, slots=True)
class Commit:
    """Publish a new global model; the engine counts versions from 0."""

    model: Tensor


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Set a timer, or move the timer with this key.

    A timer set for `now` fires after all other events of this instant.
    """

    key: str
    at: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel the timer with this key, if it exists."""

    key: str


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse an update, for example because it is too stale."""

    client: int
    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Record quantities of the method in the trace."""

    values: Mapping[str, float]
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run."""

    reason: str


Action = Dispatch | Commit | SetTimer | CancelTimer | Reject | Note | Stop


def _dict_store(purpose: str) -> MutableMapping[int, Tensor]:
    """Return a dict as the store of a `World` without an engine, which keeps all tensors in memory."""
    return {}


@dataclass(frozen=True, slots=True)
class World:
    """The information a strategy receives at the start. Clients not listed here may join at any time."""

    model: Tensor
    layout: Layout
    clients: Mapping[int, int]  # client -> number of examples
    seed: int = 0
    probe: Callable[[Tensor], Tensor] | None = None  # computes the sensitivity sketch of a model (FedPSA)
    store: Callable[[str], MutableMapping[int, Tensor]] = _dict_store  # purpose -> per-client tensors


class State(Protocol):
    """A plain dataclass with at least these two fields; `model` is the tensor of the last Commit."""

    model: Tensor
    version: int


@runtime_checkable
class Strategy(Protocol):
    """A frozen, keyword-only dataclass of hyper-parameters.

    Two methods are optional. `model_for(state, client) -> Tensor` returns the model used for per-client metrics.
    `finish(state, now) -> list[Action]` runs once at the regular end of a run, not after an interruption, and may
    return only Commit and Note.
    """

    def init(self, world: World) -> Any:
        """Return the initial state."""
        ...

    def on_event(self, state: Any, event: Event) -> list[Action]:
        """Record an event in the state, and return the actions that it causes."""
        ...
