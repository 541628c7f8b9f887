"""Local training on a client: its work, the rule that computes its directions, and the rules that methods share.

A rule is the client half of a method. `offbeat.core.protocol` exports the types that strategies and rules need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, ClassVar, Protocol

from torch import Tensor

from offbeat.core.errors import require
from offbeat.core.vector import Layout


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of local training; `slices` names the parameters that are trained (None: all)."""

    steps: int | None = None
    epochs: int | None = None
    lr: float | None = None
    slices: tuple[str, ...] | None = None


Gradient = Callable[[Tensor], Tensor]  # point -> gradient of this batch's loss there (trainable entries only)
RuleCarry = Any  # the values that a rule passes from step to step: tensors in tuples, lists or dicts


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

    def begin(self, job: LocalJob) -> RuleCarry:
        """Run once before the first step and return the carry that `direction` receives."""
        return None

    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor | None:
        """Return the loss of the method, or None for the loss of the task. `features` are the inputs of the head."""
        return None

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: RuleCarry) -> tuple[Tensor, RuleCarry]:
        """Return the direction for the optimizer and the new carry."""
        return grad(w), carry

    def end(self, job: LocalJob, local: Tensor, carry: RuleCarry) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
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
        """Check the settings."""
        for name in ("steps", "epochs"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"work.{name} = {value}: must be at least 1")
        require(self.steps is None or self.epochs is None, "work: give steps or epochs, not both")
        require(self.lr is None or self.lr > 0, f"work.lr = {self.lr}: must be positive")


@dataclass(frozen=True)
class PlainRule(LocalRule):
    """The default rule: descend the gradient unchanged."""


PLAIN_RULE = PlainRule()


@dataclass(frozen=True)
class Proximal(LocalRule):
    """Minimize the local loss + (mu / 2) ||w - start||^2, which adds mu (w - start) to the gradient."""

    mu: float

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.mu >= 0 and isfinite(self.mu), f"proximal mu = {self.mu}: must be 0 or more, and finite")

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: RuleCarry) -> tuple[Tensor, RuleCarry]:
        return grad(w).add(w - job.start, alpha=self.mu), carry


def with_proximal(work: LocalWork, mu: float) -> LocalWork:
    """Return the work with a proximal term; mu = 0 returns it unchanged."""
    if mu == 0:
        return work
    message = f"a proximal term of {mu} cannot be added to work that already has the rule {work.rule!r}"
    require(work.rule is None, message)
    return replace(work, rule=Proximal(mu=mu))
