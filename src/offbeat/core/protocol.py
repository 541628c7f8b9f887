"""The contract between engines and strategies: events are facts, actions are requests.

Rule 1: The engine owns time, randomness, devices, files and the network. A strategy receives events and returns
actions; it changes nothing but its own state.
Rule 2: An illegal action raises ProtocolError, and the engine carries out none of the actions in that answer.

Times are seconds as floats. Vectors are flat (see `core.vector`). `delta` is always local - base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from offbeat.core.errors import ProtocolError, require
from offbeat.core.vector import Layout, Slice

__all__ = [
    "Action",
    "CancelTimer",
    "ClientLost",
    "ClientReady",
    "Commit",
    "Dispatch",
    "Event",
    "Gradient",
    "Layout",
    "LocalJob",
    "LocalRule",
    "LocalWork",
    "Note",
    "Phase",
    "ProtocolError",
    "Reject",
    "SetTimer",
    "Slice",
    "State",
    "Stop",
    "Strategy",
    "TimerFired",
    "UpdateArrived",
    "World",
]


# ---------------------------------------------------------------- local training on a client


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of local training; `slices` names the parameters that are trained (None: all)."""

    steps: int | None = None
    epochs: int | None = None
    lr: float | None = None
    slices: tuple[str, ...] | None = None


Gradient = Callable[[Tensor], Tensor]  # point -> gradient of this batch's loss there (trainable entries only)


@dataclass(frozen=True, slots=True)
class LocalJob:
    """The view of a job that a local rule receives. Vectors may have leading client dimensions."""

    base: Tensor  # the complete vector sent to the client
    start: Tensor  # the trainable entries of base, at which w starts
    layout: Layout
    lr: float | Tensor  # a column with one rate per client when jobs are stacked
    extras: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]  # trainable-sized vectors kept from the last accepted job, initially zeros
    probe: Callable[[Tensor], Tensor] | None = None  # computes the sketch of a whole model, as World.probe does
    # (inputs of the head, labels) for all examples that have arrived, computed with a given whole model; has no side
    # effects and draws nothing
    features: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None


class LocalRule(Protocol):
    """The client half of a method, a frozen dataclass. Inherit from this class to use its defaults.

    Rules work on the trainable entries only, reduce over the last dimension, and never branch on values, so that
    many clients can be trained in one batch.
    """

    memory: ClassVar[tuple[str, ...]] = ()  # names of the vectors a client keeps between its jobs
    cost: ClassVar[float] = 1.0  # gradients per step, for fair virtual time
    # True if `direction` and `loss` accept several clients at once (checked by a law); False trains one at a time
    stacks: ClassVar[bool] = True

    @property
    def head(self) -> str | None:
        """Name of the module whose inputs `features` returns; None means the last one with parameters."""
        return None

    def phases(self, work: LocalWork) -> tuple[Phase, ...]:
        """Return the phases of the training; one by default."""
        return (Phase(steps=work.steps, epochs=work.epochs, lr=work.lr),)

    def begin(self, job: LocalJob) -> Any:
        """Run once before the first step and return the carry that `direction` receives."""
        return None

    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor | None:
        """Return the loss of the method, or None for the loss of the task. `features` are the inputs of the head."""
        return None

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        """Return the direction for the optimizer and the new carry."""
        return grad(w), carry

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Run once after the last step on the complete local vector; return (extras to upload, new memory)."""
        return {}, {}

    def uploads(self, layout: Layout) -> Mapping[str, int]:
        """Return names and lengths of the extras that every upload must contain; the admission gate checks them."""
        return {}


@dataclass(frozen=True, slots=True)
class LocalWork:
    """The training a client is asked to do; None means the value of the experiment's training section."""

    steps: int | None = None
    epochs: int | None = None
    lr: float | None = None
    rule: LocalRule | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("steps", "epochs"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"work.{name} = {value}: must be at least 1")
        require(self.steps is None or self.epochs is None, "work: give steps or epochs, not both")
        require(self.lr is None or self.lr > 0, f"work.lr = {self.lr}: must be positive")


# ---------------------------------------------------------------- events: facts


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


# ---------------------------------------------------------------- actions: requests


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


# ---------------------------------------------------------------- the server half


def _dict_store(name: str) -> MutableMapping[int, Tensor]:
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

    def init(self, world: World) -> Any: ...

    def on_event(self, state: Any, event: Event) -> list[Action]: ...
