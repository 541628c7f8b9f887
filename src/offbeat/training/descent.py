"""The descent of a job: its plan, the local optimizers, and the loop over its steps.

The plan holds everything that is decided before the first step: batches, augmentation, learning rates, numbers of steps
and the seed of dropout. It is a pure function of the job, so every worker takes the same steps, whether it trains one
client or a stack of clients.

The optimizers work on flat vectors, with the results of torch.optim. All arithmetic is elementwise, so vectors may have
leading client dimensions. Directions are never changed in place, because the rule that returned one may still use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from offbeat.core import draws
from offbeat.core.draws import batch_keys, epoch_order
from offbeat.core.errors import unknown_name
from offbeat.core.jobs import Job, Rate
from offbeat.core.local_rules import PLAIN_RULE, RuleCarry
from offbeat.core.protocol import Gradient, Layout, LocalJob, LocalRule, Phase
from offbeat.training.augmentation import CropFlip

Epoch = tuple[Tensor, list[int], Tensor | None]  # positions of examples, batch sizes, augmentation of each example
Schedule = tuple[float, tuple[Phase, ...], tuple[int, ...]]  # learning rate of the job, phases, steps of each phase


job_key = attrgetter("seed", "client", "index")


@dataclass(slots=True)  # not frozen: one is made per job, and freezing would double its cost
class Plan:
    """The decisions of one job before its first step."""

    job: Job
    lr: float  # of the job; a phase may have its own
    phases: tuple[Phase, ...]
    phase_steps: tuple[int, ...]  # steps of each phase
    batch: int
    merge_last: bool  # merge a last batch of one example into the batch before
    augment: CropFlip | None

    @property
    def noise_seed(self) -> int:
        """The seed of dropout and of other random numbers that the model draws."""
        return self._key("noise") >> 1

    @property
    def augment_key(self) -> int:
        """The key of the augmentation."""
        return self._key("augment") >> 1

    @property
    def steps(self) -> int:
        """The number of steps of all phases."""
        return sum(self.phase_steps)

    @property
    def largest_batch(self) -> int:
        """The number of examples in the largest batch."""
        examples = self.job.num_examples
        return min(examples, self.batch) + (self.merge_last and has_single_last(examples, self.batch))

    def learning_rate(self, phase: int) -> float:
        """Return the learning rate of a phase."""
        phase_lr = self.phases[phase].lr
        return self.lr if phase_lr is None else phase_lr

    def first_epoch(self, phase: int) -> int:
        """Return the number of epochs that earlier phases began."""
        each = batches_per_epoch(self.job.num_examples, self.batch, self.merge_last)
        return sum(-(-steps // each) for steps in self.phase_steps[:phase])

    def epochs(self, phase: int) -> Iterator[Epoch]:
        """Yield the epochs that make up the steps of this phase; the last one may end early."""
        examples, steps, epoch = self.job.num_examples, self.phase_steps[phase], self.first_epoch(phase)
        sizes, order_key = batch_sizes(examples, self.batch, self.merge_last), int(batch_keys([job_key(self.job)])[0])
        while steps > 0:
            used = sizes[:steps]
            positions = torch.from_numpy(epoch_order(order_key, epoch, examples)[: sum(used)])
            moves = None
            if self.augment is not None:
                key = torch.tensor(self.augment_key)
                moves = self.augment.draw(key, torch.tensor(epoch), torch.arange(len(positions)))
            yield positions, used, moves
            steps, epoch = steps - len(used), epoch + 1

    def batches(self, phase: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the positions of the examples of each step, and how each example is augmented."""
        for positions, sizes, moves in self.epochs(phase):
            batch_moves = (None,) * len(sizes) if moves is None else torch.split(moves, sizes)
            yield from zip(torch.split(positions, sizes), batch_moves, strict=True)

    def _key(self, purpose: str) -> int:
        """Return the random bits of this job for a purpose."""
        return draws.bits(self.job.seed, purpose, self.job.client, self.job.index)


def has_single_last(examples: int, batch: int) -> bool:
    """Return whether the last of several batches of an epoch has a single example."""
    return examples > batch and examples % batch == 1


def batches_per_epoch(examples: int, batch: int, merge: bool) -> int:
    """Return the number of batches in one epoch."""
    return -(-examples // batch) - (merge and has_single_last(examples, batch))


def batch_sizes(examples: int, batch: int, merge: bool) -> list[int]:
    """Return the batch sizes of one epoch; `merge` merges a last batch of one example into the batch before."""
    full = batches_per_epoch(examples, batch, merge) - 1
    return [batch] * full + [examples - full * batch]


# ---------------------------------------------------------------- optimizers

Count = int | Tensor  # a number of steps; a tensor inside a traced step


class Optimizer(Protocol):
    """A local optimizer, whose state lasts for one phase of one job."""

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        """Move w along -d in place; with leading client dimensions the rate may be a column."""
        ...


class LocalSGD:
    """SGD with momentum and weight decay; the moment is the velocity."""

    __slots__ = ("_momentum", "_weight_decay", "moments")

    def __init__(self, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self._momentum = momentum
        self._weight_decay = weight_decay
        self.moments: list[Tensor] = []

    @property
    def moment_count(self) -> int:
        """The number of vectors in the state."""
        return 1 if self._momentum else 0

    def resume(self, moments: list[Tensor], steps: Count) -> None:
        """Continue with this velocity."""
        self.moments = moments

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        """Move w along the velocity in place."""
        if self._weight_decay:
            d = d.add(w, alpha=self._weight_decay)
        if self._momentum:
            if self.moments:
                self.moments[0].mul_(self._momentum).add_(d)
            else:
                self.moments = [d.clone()]  # as in torch: the first velocity is the direction itself
            d = self.moments[0]
        if isinstance(lr, Tensor):
            w.addcmul_(d, lr, value=-1)
        else:
            w.add_(d, alpha=-lr)


class LocalAdam:
    """Adam; the moments are the means of the directions and of their squares."""

    __slots__ = ("_beta1", "_beta2", "_eps", "_steps", "_weight_decay", "moments")
    decoupled: ClassVar[bool] = False  # whether weight decay changes w directly instead of the gradient
    moment_count: ClassVar[int] = 2

    def __init__(
        self, weight_decay: float = 0.0, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        self._weight_decay = weight_decay
        self._beta1, self._beta2, self._eps = beta1, beta2, eps
        self._steps: Count = 0
        self.moments: list[Tensor] = []

    def resume(self, moments: list[Tensor], steps: Count) -> None:
        """Continue after this number of steps with these moments."""
        self.moments, self._steps = moments, steps

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        """Move w by the unbiased mean over the root of the unbiased mean square, in place."""
        if not self.moments:
            self.moments = [d.new_zeros(d.shape), d.new_zeros(d.shape)]
        mean, square = self.moments
        self._steps = self._steps + 1
        if self._weight_decay and self.decoupled:
            w.mul_(1 - lr * self._weight_decay)
        elif self._weight_decay:
            d = d.add(w, alpha=self._weight_decay)
        mean.lerp_(d, 1 - self._beta1)
        square.mul_(self._beta2).addcmul_(d, d, value=1 - self._beta2)
        steps = self._steps.double() if isinstance(self._steps, Tensor) else self._steps
        unbias, unbias_square = 1 - self._beta1**steps, (1 - self._beta2**steps) ** 0.5
        deviation = square.sqrt().div_(unbias_square).add_(self._eps)
        if isinstance(lr, Tensor) or isinstance(unbias, Tensor):
            w.addcdiv_(mean * (lr / unbias), deviation, value=-1)
        else:
            w.addcdiv_(mean, deviation, value=-lr / unbias)


class LocalAdamW(LocalAdam):
    """Adam with decoupled weight decay."""

    __slots__ = ()
    decoupled: ClassVar[bool] = True


# ---------------------------------------------------------------- the loop

Features = Callable[[Tensor], tuple[Tensor, Tensor]]  # model -> (inputs of the head, labels)


def make_local_job(
    job: Job,
    layout: Layout,
    lr: Rate,
    probe: Callable[[Tensor], Tensor] | None = None,
    features: Features | None = None,
) -> LocalJob:
    """Build the view of a job that its rule receives; missing memory is zero."""
    rule = job.work.rule or PLAIN_RULE
    start = layout.trainable(job.base)
    memory = {name: job.memory.get(name, torch.zeros_like(start)) for name in rule.memory}
    return LocalJob(job.base, start, layout, lr, job.work.extras, memory, probe, features)


def descend(
    rule: LocalRule,
    job: LocalJob,
    phases: Iterable[Phase],
    w: Tensor,
    batches: Callable[[Phase], Iterable[Gradient]],
    fresh: Callable[[], Optimizer],
) -> tuple[int, RuleCarry]:
    """Train w in place through all phases, each with a new optimizer; return (steps taken, the rule's carry)."""
    carry, steps = rule.begin(job), 0
    for phase in phases:
        gradients = ((grad, None) for grad in batches(phase))
        taken, carry = run_phase(
            rule, job, phase, job.lr if phase.lr is None else phase.lr, w, gradients, fresh(), carry
        )
        steps += taken
    return steps, carry


def run_phase(
    rule: LocalRule,
    job: LocalJob,
    phase: Phase,
    lr: Rate,
    w: Tensor,
    steps: Iterable[tuple[Gradient, Tensor | None]],
    optimizer: Optimizer,
    carry: RuleCarry,
) -> tuple[int, RuleCarry]:
    """Train w in place through one phase, for one client or a stack of clients; return (steps taken, carry).

    In a stack the rate may be a column. Each gradient comes with a boolean column of the clients it moves (None: all).
    """
    taken, movable = 0, None if phase.slices is None else movable_entries(job, phase.slices)
    for grad, active in steps:
        carry = take_step(rule, job, movable, lr, w, grad, optimizer, carry, active)
        taken += 1
    return taken, carry


def take_step(
    rule: LocalRule,
    job: LocalJob,
    movable: Tensor | None,
    lr: Rate,
    w: Tensor,
    grad: Gradient,
    optimizer: Optimizer,
    carry: RuleCarry,
    active: Tensor | None = None,
) -> RuleCarry:
    """Move w in place by one step and return the new carry.

    Only movable entries change (None: all), and only active clients, whose column is true (None: all). The others keep
    their w and their carry.
    """
    before = None if movable is None and active is None else w.clone()
    d, after = rule.direction(job, w, grad, carry)
    optimizer.step(w, d, lr)
    if before is not None and movable is not None:
        w.copy_(torch.where(movable, w, before))
    if before is not None and active is not None:
        w.copy_(torch.where(active, w, before))
        after = _merge_carry(active, after, carry)
    return after


def _merge_carry(active: Tensor, new: RuleCarry, old: RuleCarry) -> RuleCarry:
    """Return the new carry for active clients and the old one for the others."""

    def merge(after: RuleCarry, before: RuleCarry) -> RuleCarry:
        """Return one tensor of the carry, with the new rows of active clients."""
        if not isinstance(after, Tensor):
            return after
        return torch.where(active.view(-1, *(1,) * (after.dim() - 1)), after, before)

    return tree_map(merge, new, old)


def movable_entries(job: LocalJob, names: tuple[str, ...]) -> Tensor:
    """Return a mask of the trainable entries that belong to the named slices."""
    known = [s.name for s in job.layout.of_kind("param")]
    for name in names:
        if name not in known:
            raise unknown_name("slice", name, known)
    parts = [torch.full((s.stop - s.start,), s.name in names) for s in job.layout.of_kind("param")]
    return torch.cat(parts).to(job.start.device)
