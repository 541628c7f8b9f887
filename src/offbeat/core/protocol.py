"""The contract between engines and strategies: events are facts, actions are requests.

Rule 1: the engine owns time, randomness, devices, files and the network. A strategy sees events and answers with
actions; it touches nothing but its own state.
Rule 2: an illegal action raises ProtocolError and nothing of that answer is carried out.

Times are float seconds. Vectors are flat (see `core.vector`). `delta` is always local - base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
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


# ---------------------------------------------------------------- the client half


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of local training; `slices` names the parameters that move (None: all)."""

    steps: int | None = None
    epochs: int | None = None
    lr: float | None = None
    slices: tuple[str, ...] | None = None


Gradient = Callable[[Tensor], Tensor]  # the gradient of this batch's loss at a point (trainable entries only)


@dataclass(frozen=True, slots=True)
class LocalJob:
    """What a rule sees of its job. Vectors may carry leading client dimensions."""

    base: Tensor  # what the client was sent, whole
    start: Tensor  # the trainable entries of base: where w begins
    layout: Layout
    lr: float | Tensor  # of a stack: a column, one for each client
    extras: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]  # trainable-sized vectors kept from the last accepted job, zeros at first
    probe: Callable[[Tensor], Tensor] | None = None  # the sketch of a whole model, the same as World.probe
    # what enters the head at a whole model, and the labels, of all examples that have arrived; nothing moves, nothing
    # is drawn
    features: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None


class LocalRule(Protocol):
    """The client half of a method: a frozen dataclass. Inherit from this to take over the defaults.

    Rules work on the trainable entries only, reduce over the last dimension, and never branch on values, so that
    many clients can be trained in one batch.
    """

    memory: ClassVar[tuple[str, ...]] = ()  # vectors this client keeps between its jobs
    cost: ClassVar[float] = 1.0  # gradients per step, for fair virtual time
    # may `direction` and `loss` be given many clients at once? A law checks it; False: one by one
    stacks: ClassVar[bool] = True

    @property
    def head(self) -> str | None:
        """The module whose input `features` means; None: the last one with parameters."""
        return None

    def phases(self, work: LocalWork) -> tuple[Phase, ...]:
        return (Phase(steps=work.steps, epochs=work.epochs, lr=work.lr),)

    def begin(self, job: LocalJob) -> Any:
        """Once before the first step; returns the carry handed to `direction`."""
        return None

    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor | None:
        """A loss of the method's own; None keeps the task's. `features` is what enters the model's head."""
        return None

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        """The direction handed to the optimizer, and the new carry."""
        return grad(w), carry

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """After the last step, with the whole local vector: (extras to upload, new memory)."""
        return {}, {}

    def uploads(self, layout: Layout) -> Mapping[str, int]:
        """Names and lengths of the extras every upload must carry; the admission gate holds clients to it."""
        return {}


@dataclass(frozen=True, slots=True)
class LocalWork:
    """What a client is asked to do; None means the experiment's training section."""

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


# Four are made for every update: ClientReady, UpdateArrived, Dispatch, Commit. The `__init__` that a frozen dataclass
# is given looks each slot up by name; theirs takes the slots' own setters, in the order of the fields, for half the
# price.
def _slots_of(cls: type) -> list[Callable[[Any, Any], None]]:
    return [vars(cls)[f.name].__set__ for f in fields(cls)]


@dataclass(frozen=True, slots=True, init=False)
class ClientReady:
    """An idle, reachable client can take work; a strategy may answer now or later."""

    now: float
    client: int
    num_examples: int

    def __init__(self, now: float, client: int, num_examples: int) -> None:
        _ready_now(self, now)
        _ready_client(self, client)
        _ready_examples(self, num_examples)


_ready_now, _ready_client, _ready_examples = _slots_of(ClientReady)


@dataclass(frozen=True, slots=True, init=False)
class UpdateArrived:
    """A client answered: `base` is exactly what it was sent, `local` what it returned."""

    now: float
    client: int
    ticket: int
    base_version: int
    base: Tensor
    local: Tensor
    num_examples: int  # what it trained on
    steps: int
    started: float  # dispatch time
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __init__(
        self,
        now: float,
        client: int,
        ticket: int,
        base_version: int,
        base: Tensor,
        local: Tensor,
        num_examples: int,
        steps: int,
        started: float,
        extras: Mapping[str, Tensor] | None = None,
    ) -> None:
        _now(self, now)
        _client(self, client)
        _ticket(self, ticket)
        _base_version(self, base_version)
        _base(self, base)
        _local(self, local)
        _examples(self, num_examples)
        _steps(self, steps)
        _started(self, started)
        _extras(self, {} if extras is None else extras)


_now, _client, _ticket, _base_version, _base, _local, _examples, _steps, _started, _extras = _slots_of(UpdateArrived)


@dataclass(frozen=True, slots=True)
class ClientLost:
    """The client will not answer that ticket (None: an idle client left)."""

    now: float
    client: int
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class TimerFired:
    now: float
    key: str


Event = ClientReady | UpdateArrived | ClientLost | TimerFired


# ---------------------------------------------------------------- actions: requests


@dataclass(frozen=True, slots=True, init=False)
class Dispatch:
    client: int
    model: Tensor
    work: LocalWork = LocalWork()

    def __init__(self, client: int, model: Tensor, work: LocalWork = LocalWork()) -> None:
        _to_client(self, client)
        _sent_model(self, model)
        _sent_work(self, work)


_to_client, _sent_model, _sent_work = _slots_of(Dispatch)


@dataclass(frozen=True, slots=True, init=False)
class Commit:
    """The global model changes; the engine counts versions from 0."""

    model: Tensor

    def __init__(self, model: Tensor) -> None:
        _committed(self, model)


(_committed,) = _slots_of(Commit)


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Setting an existing key moves it; a timer set for `now` fires when all else of this instant is done."""

    key: str
    at: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    key: str


@dataclass(frozen=True, slots=True)
class Reject:
    """The strategy refuses an update (too stale, say)."""

    client: int
    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A method's own quantities into the trace."""

    values: Mapping[str, float]
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str


Action = Dispatch | Commit | SetTimer | CancelTimer | Reject | Note | Stop


# ---------------------------------------------------------------- the server half


def _dict_store(name: str) -> MutableMapping[int, Tensor]:
    return {}


@dataclass(frozen=True, slots=True)
class World:
    """What a strategy knows at the start. Clients not listed here may appear at any time."""

    model: Tensor
    layout: Layout
    clients: Mapping[int, int]  # client -> number of examples
    seed: int = 0
    probe: Callable[[Tensor], Tensor] | None = None  # FedPSA: the sensitivity sketch of a model
    store: Callable[[str], MutableMapping[int, Tensor]] = _dict_store  # per-client tensors by purpose


class State(Protocol):
    """A plain dataclass with at least these two; `model` is the tensor of the last Commit."""

    model: Tensor
    version: int


@runtime_checkable
class Strategy(Protocol):
    """A frozen, keyword-only dataclass of hyper-parameters.

    Optional: model_for(state, client) -> Tensor, what a client is judged by; finish(state, now) -> list[Action], asked
    once when a run ends in order (not when it is interrupted): Commit and Note are all that is left to ask for.
    """

    def init(self, world: World) -> Any: ...

    def on_event(self, state: Any, event: Event) -> list[Action]: ...
