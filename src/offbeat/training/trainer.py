"""Train one client at a time: the `training` section of an experiment and the trainer of single jobs.

A trainer reuses one module and one flat vector for all jobs of all clients. This is safe because a job is a pure
function: it first overwrites the complete state of the module, draws random numbers only from its own key, and returns
copies.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from operator import le
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor, nn

from offbeat.core.draws import step_keys
from offbeat.core.errors import ConfigError, DataError, ProtocolError, require, unknown_name
from offbeat.core.jobs import Job, Result, extract_client_statistics, insert_client_statistics
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalJob, LocalRule, LocalWork, Phase
from offbeat.core.settings import Amount, BelowOne, Rate, Share, check, least
from offbeat.core.vector import Binding
from offbeat.training.augmentation import CropFlip
from offbeat.training.client_data import ClientData, Pair, list_clients
from offbeat.training.dense_chain import DenseChain
from offbeat.training.descent import (
    LocalAdam,
    LocalAdamW,
    LocalSGD,
    Plan,
    Schedule,
    batches_per_epoch,
    descend,
    make_local_job,
)
from offbeat.training.gradient import BatchGradient, Gradients, device_generators, find_head, preserved_state, seeded
from offbeat.training.tasks import Loss, Task, as_task

_OptimizerName = Literal["sgd", "adam", "adamw"]
_BatchNormMode = Literal["shared", "local"]
_AugmentationName = Literal["crop-flip"]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

_WorkKey = tuple[int | None, int | None, float | None, int]  # steps, epochs, learning rate, examples
_AtLeastOne = Annotated[int, least(1, "must be at least 1")]

_MAX_GATHERED_VALUES = 2**22  # input values copied at once: the examples of many batches are gathered together
_MAX_CACHED_SCHEDULES = 4096
_FORWARD_BATCH = 1024  # examples per batch when no gradient is needed


@dataclass(frozen=True, kw_only=True)
class Training:
    """The `training` section of an experiment: the defaults for local work."""

    optimizer: _OptimizerName = "sgd"  # its state is fresh in each job
    lr: Rate = 0.05  # learning rate
    lr_decay: Share = 1.0  # the learning rate of work on version v is lr * lr_decay ** v
    momentum: BelowOne = 0.0  # of sgd, within a job
    weight_decay: Amount = 0.0  # this multiple of the weights is added to the gradient; adamw decouples it
    batch: _AtLeastOne = 32  # examples per step
    steps: _AtLeastOne | None = None  # steps per job; or
    epochs: _AtLeastOne | None = None  # passes over the client's data; if neither is set: one epoch
    bn: _BatchNormMode = "shared"  # BatchNorm statistics: "shared" (merged by the server) or "local" to each client
    augment: _AugmentationName | None = None  # of images: shift by up to four pixels, mirror half of the time

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.optimizer not in get_args(_OptimizerName):
            raise unknown_name("optimizer", self.optimizer, get_args(_OptimizerName))
        if self.augment is not None and self.augment not in get_args(_AugmentationName):
            raise unknown_name("augmentation", self.augment, get_args(_AugmentationName))
        try:
            check(self)
        except ConfigError as error:
            raise ConfigError(f"training.{error}") from None
        require(
            self.momentum == 0 or self.optimizer == "sgd",
            f"training.momentum = {self.momentum}: {self.optimizer} has no momentum; use sgd, or leave momentum at 0",
        )
        require(
            self.steps is None or self.epochs is None,
            f"training: steps = {self.steps} and epochs = {self.epochs}: give one of them",
        )

    def __getattr__(self, name: str) -> object:
        """Find methods by their former names, with a warning."""
        renamed = {"count": "count_steps", "fresh": "make_optimizer", "rate": "learning_rate"}
        if name not in renamed:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn(f"Training.{name} is now called {renamed[name]}", DeprecationWarning, stacklevel=2)
        return getattr(self, renamed[name])

    def learning_rate(self, version: int) -> float:
        """Return the learning rate of work on this version."""
        return self.lr * self.lr_decay**version

    def make_optimizer(self) -> LocalSGD | LocalAdam:
        """Return a new optimizer."""
        if self.optimizer == "sgd":
            return LocalSGD(self.momentum, self.weight_decay)
        return (LocalAdam if self.optimizer == "adam" else LocalAdamW)(self.weight_decay)

    def count_steps(self, phase: Phase, examples: int, merge: bool) -> int:
        """Return the number of steps of a phase on this many examples."""
        steps, passes = phase.steps, phase.epochs
        if steps is None and passes is None:
            steps, passes = self.steps, self.epochs
        if steps is not None:
            return steps
        return (1 if passes is None else passes) * batches_per_epoch(examples, self.batch, merge)


class Trainer:
    """Train jobs one at a time: `trainer(job)` returns its result.

    A module is copied. A Binding is used directly, which avoids a second copy of a large model. `probe` computes the
    sketch of a model for rules that need it.
    """

    def __init__(
        self,
        model: nn.Module | Binding,
        data: ClientData,
        training: Training | None = None,
        task: Task | Loss | None = None,
        probe: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.binding = model if isinstance(model, Binding) else Binding(deepcopy(model))
        self.data = data
        self.training = Training() if training is None else training
        self.task = as_task(task, data.label_dtype)
        self.probe = probe
        self._augment = None if self.training.augment is None else CropFlip(data)
        # batch statistics need at least two examples
        self._merge_last = any(isinstance(m, _BATCH_NORMS) for m in self.binding.module.modules())
        self.chain = DenseChain.for_module(self.binding.module, self.binding.layout, self.task, data)
        self._gradients = Gradients(self.binding, self.task, self.chain)
        self._schedules: dict[_WorkKey, tuple[tuple[Phase, ...], tuple[int, ...]]] = {}
        # non-persistent buffers are not part of the vector: reset before each job, or jobs would depend on each other
        self._untracked_buffers = [
            (m, name, b, b.clone())
            for m in self.binding.module.modules()
            for name, b in m._buffers.items()
            if b is not None and name in m._non_persistent_buffers_set
        ]
        if self._merge_last:
            self._reject_single_examples()

    def __reduce__(self) -> tuple[object, ...]:
        # pickling a view copies it, so the other process binds the parameters again
        self._reset_untracked_buffers()
        return Trainer, (self.binding.module, self.data, self.training, self.task, self.probe)

    def __call__(self, job: Job) -> Result:
        """Train a job and return its result."""
        prepared = self.prepare_job(job)
        plan, rule = self.make_plan(prepared), prepared.work.rule or PLAIN_RULE
        local_job = self.make_local_job(job, prepared, plan)
        self._reset_untracked_buffers()
        self.binding.load(prepared.base)
        self.binding.module.train()
        phase_numbers = count()  # counted, because two phases may be equal
        with (
            torch.enable_grad(),
            seeded(self._gradients.sources, plan.noise_seed),
            self._gradients.use_rule(rule, local_job),
        ):
            gradients_of = lambda _: self._batch_gradients(plan, next(phase_numbers))  # noqa: E731
            steps, carry = descend(
                rule, local_job, plan.phases, self.binding.w, gradients_of, self.training.make_optimizer
            )
            local = self.binding.copy()
            extras, memory = rule.end(local_job, local, carry)
        result = Result(
            ticket=job.ticket, local=local, num_examples=job.num_examples, steps=steps, extras=extras, memory=memory
        )
        return extract_client_statistics(job, result, self.binding.layout) if self.training.bn == "local" else result

    # ------------------------------------------------------------ parts that the trainers of stacks use, too

    def prepare_job(self, job: Job) -> Job:
        """Check the job and insert the client's own BatchNorm statistics if it keeps them."""
        self.check_job(job.client, job.num_examples)
        return insert_client_statistics(job, self.binding.layout) if self.training.bn == "local" else job

    def make_plan(self, job: Job) -> Plan:
        """Return the plan of a job."""
        return Plan(job, *self.schedule(job), self.training.batch, self._merge_last, self._augment)

    def schedule(self, job: Job) -> Schedule:
        """Return learning rate, phases and steps per phase of a job without making a plan."""
        work, examples, key = job.work, job.num_examples, None
        lr = self.training.learning_rate(job.base_version) if work.lr is None else work.lr
        if work.rule is None:  # many jobs have the same work
            key = work.steps, work.epochs, work.lr, examples
            cached = self._schedules.get(key)
            if cached is not None:
                return lr, *cached
        phases = (work.rule or PLAIN_RULE).phases(work)
        counts = tuple(self.training.count_steps(phase, examples, self._merge_last) for phase in phases)
        if key is not None and len(self._schedules) < _MAX_CACHED_SCHEDULES:
            self._schedules[key] = phases, counts
        return lr, phases, counts

    @property
    def has_batch_norm(self) -> bool:
        """True if the model computes statistics of batches, which need at least two examples."""
        return self._merge_last

    def total_steps(self, job: Job) -> int:
        """Return the number of steps of a job."""
        return sum(self.schedule(job)[2])

    def rates_and_steps(self, jobs: Sequence[Job]) -> list[tuple[float, int]]:
        """Return learning rate and steps of each of many jobs that have the same work, in one phase."""
        counts = [job.num_examples for job in jobs]
        if min(counts) < 1 or not all(map(le, counts, map(self.data.size, [job.client for job in jobs]))):
            for job in jobs:
                self.check_job(job.client, job.num_examples)  # raises the error for the right client
        work = jobs[0].work
        (phase,) = (work.rule or PLAIN_RULE).phases(work)
        steps = {count: self.training.count_steps(phase, count, self._merge_last) for count in set(counts)}
        versions = [job.base_version for job in jobs]
        rates = {v: self.training.learning_rate(v) if work.lr is None else work.lr for v in set(versions)}
        return [(rates[version], steps[count]) for version, count in zip(versions, counts, strict=True)]

    def make_local_job(self, sent: Job, prepared: Job, plan: Plan) -> LocalJob:
        """Return the job as its rule sees it; `prepared` is `sent` with the client's own statistics."""
        rule, layout, probe = prepared.work.rule or PLAIN_RULE, self.binding.layout, self.probe

        def features_at(vector: Tensor) -> Pair:
            """Return the inputs of the head at a model, and the labels, for all of the client's examples."""
            examples = self._all_examples(prepared.client, prepared.num_examples)
            return head_inputs(self.binding, rule.head, vector, examples)

        if probe is not None and self.training.bn == "local":
            # sketch the model that is uploaded, which has the server's statistics: the server compares the sketches
            statistics, model_probe = layout.statistics(sent.base), probe
            probe = lambda vector: model_probe(layout.with_statistics(vector, statistics))  # noqa: E731
        return make_local_job(prepared, layout, plan.lr, probe, features_at)

    def gradient(
        self,
        rule: LocalRule,
        job: LocalJob,
        vector: Tensor,
        buffers: Mapping[str, Tensor],
        x: Tensor,
        y: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient of one batch for a model, buffers and a dropout key, and the buffers afterwards."""
        self._reset_untracked_buffers()
        self.binding.load(vector)
        for name, buffer in self.binding.module.named_buffers():
            buffer.copy_(buffers[name])
        self.binding.module.train()
        with torch.enable_grad(), seeded(self._gradients.sources, 0), self._gradients.use_rule(rule, job):
            gradient = BatchGradient(self._gradients, x, y, key)(self.binding.w)
        return gradient, {name: buffer.clone() for name, buffer in self.binding.module.named_buffers()}

    def stack_buffers(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the module's buffers for each client of a stack; the tracked ones come from the clients' vectors."""
        self._reset_untracked_buffers()
        tracked = {s.name: s for s in self.binding.layout.slices if s.kind != "param"}
        buffers = {}
        for name, buffer in self.binding.module.named_buffers():
            s = tracked.get(name)
            rows = (
                buffer.expand(len(vectors), *buffer.shape)
                if s is None
                else vectors[:, s.start : s.stop].view(-1, *s.shape)
            )
            buffers[name] = rows.to(buffer.dtype, copy=True).contiguous()
        return buffers

    def write_stack_buffers(self, vectors: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Copy the tracked buffers of each client back to its vector."""
        for s in self.binding.layout.slices:
            if s.kind != "param":
                vectors[:, s.start : s.stop] = buffers[s.name].reshape(len(vectors), -1).to(vectors.dtype)

    def count_steps(self, client: int, work: LocalWork, num_examples: int) -> int:
        """Return the number of steps that this work takes."""
        self.check_job(client, num_examples)
        rule = work.rule or PLAIN_RULE
        return sum(self.training.count_steps(phase, num_examples, self._merge_last) for phase in rule.phases(work))

    def _reject_single_examples(self) -> None:
        """Raise an error if a client has one example and BatchNorm cannot train on it.

        One example is enough for BatchNorm over several positions, so a forward pass decides.
        """
        single = [client for client, examples in self.data.num_examples.items() if examples == 1]
        if not single:
            return
        x, _ = self.data.take(single[0], torch.zeros(1, dtype=torch.int64))
        with torch.no_grad(), seeded(self._gradients.sources, 0), preserved_state(self.binding.module, self.binding.w):
            self.binding.module.train()
            try:
                self.binding.module(x)
            except ValueError as error:
                names = list_clients(single)
                who = f"client {names} has" if len(single) == 1 else f"{len(single)} clients have ({names})"
                problem = f"{who} one example, on which a model with BatchNorm cannot train ({error})"
                raise DataError(f"{problem}: leave these clients out or partition differently") from error

    def check_job(self, client: int, num_examples: int) -> None:
        """Raise DataError unless the client has at least this many examples."""
        available = self.data.size(client)
        if not 1 <= num_examples <= available:
            raise DataError(f"client {client} cannot train on {num_examples} examples: it has {available}")

    def _reset_untracked_buffers(self) -> None:
        """Restore the initial values of buffers that are not part of the vector."""
        for m, name, b, value in self._untracked_buffers:
            m._buffers[name] = b
            b.copy_(value)

    def _all_examples(self, client: int, examples: int) -> Iterator[Pair]:
        """Return batches of all examples of a client."""
        size = max(1, min(_FORWARD_BATCH, _MAX_GATHERED_VALUES // self.data.input_size))
        return (self.data.take(client, positions) for positions in torch.split(torch.arange(examples), size))

    def _batch_gradients(self, plan: Plan, phase: int) -> Iterator[BatchGradient]:
        """Yield the gradient of each batch of a phase."""
        client, step = plan.job.client, sum(plan.phase_steps[:phase])
        noise = torch.tensor(plan.noise_seed, device=self.binding.w.device) if self._gradients.needs_keys else None
        batches_per_copy = max(1, _MAX_GATHERED_VALUES // (plan.batch * self.data.input_size))
        for positions, sizes, moves in plan.epochs(phase):
            start = 0
            for first in range(0, len(sizes), batches_per_copy):
                copied = sizes[first : first + batches_per_copy]
                x, y = self.data.take(client, positions[start : start + sum(copied)])
                if plan.augment is not None and moves is not None:
                    x = plan.augment(x, moves[start : start + len(x)])
                start += len(x)
                for pair in zip(torch.split(x, copied), torch.split(y, copied), strict=True):
                    yield BatchGradient(self._gradients, *pair, None if noise is None else step_keys(noise, step))
                    step += 1


def head_inputs(binding: Binding, name: str | None, vector: Tensor, batches: Iterable[Pair]) -> Pair:
    """Return the inputs of the model's head and the labels for all batches, in evaluation mode.

    Rules use it for features of their client's data (FedPAC's class means). The module, its buffers, its training
    modes and torch's generators are restored, so a rule may call it before, between and after its steps.
    """
    module, inputs_seen, labels = binding.module, list[Tensor](), list[Tensor]()

    def store_input(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Store the input of the head."""
        if inputs:
            inputs_seen.append(inputs[0])

    modes = [(m, m.training) for m in module.modules()]
    with torch.no_grad(), seeded(device_generators(binding.vector.device), 0), preserved_state(module, binding.w):
        hook = find_head(module, name).register_forward_pre_hook(store_input)
        try:
            binding.load(vector)
            module.eval()
            for x, y in batches:
                module(x)
                labels.append(y)
        finally:
            hook.remove()
            for m, training in modes:
                m.training = training
    if len(inputs_seen) != len(labels):
        counts = f"{len(labels)} batches went through the model, and {len(inputs_seen)} entered its head"
        raise ProtocolError(f"{counts}: the model must call its head once per batch")
    return torch.cat(inputs_seen), torch.cat(labels)
