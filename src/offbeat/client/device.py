"""Stacks of clients trained by programs that are recorded once: what a GPU needs to be kept busy.

Jobs of one rule are put into a program of the next size up; programs are kept. Jobs of several runs share a program
where their models, data and optimizers are the same. Whatever a program cannot do (models with BatchNorm or layers of
their own, losses that are no mean over examples, rules with phases) is trained as stacks are elsewhere, and that is
said once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from offbeat.client.batches import needs_two
from offbeat.client.gradient import overrides
from offbeat.client.layers import NotStacked, stacked
from offbeat.client.plan import Plan
from offbeat.client.program import CannotRecord, Forward, Losses, Program, Steps
from offbeat.client.randomness import generators, restore, seeded, states
from offbeat.client.stack import StackTrainer, alike, named, unknown_words
from offbeat.client.task import Classification, Regression, Task
from offbeat.client.training import Trainer
from offbeat.core.jobs import PLAIN, Job, Result, carry_of
from offbeat.core.protocol import LocalJob, LocalRule

log = logging.getLogger("offbeat")

MOST = 1024  # clients in a stack
KEPT = 64  # programs


@dataclass(frozen=True)
class Form:
    """What jobs that share a program have in common."""

    key: Any
    forward: Forward
    losses: Losses
    pair: tuple[Tensor, Tensor]


class DeviceTrainer:
    """attempt(jobs) -> results, in order. `owner` says which trainer is a job's, where there are several."""

    def __init__(
        self, trainers: Sequence[Trainer], owner: Callable[[Job], int] = lambda job: 0, most: int = MOST
    ) -> None:
        self._trainers, self._owner, self.most = trainers, owner, most
        self._rows = [trainer.data.in_one_place() for trainer in trainers]
        self._forms = [self._form(trainer, pair) for trainer, (pair, _) in zip(trainers, self._rows, strict=True)]
        self._others: dict[int, StackTrainer] = {}
        self._sources = generators(trainers[0].binding.vector.device)
        self._programs: dict[Any, Program] = {}
        self._refused: set[Any] = set()  # rules that cannot be recorded
        self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def _form(self, trainer: Trainer, pair: tuple[Tensor, Tensor]) -> Form | None:
        module, training = trainer.binding.module, trainer.training
        try:
            if needs_two(module):
                raise NotStacked("BatchNorm sees all examples of a batch")
            names = {s.name for s in trainer.binding.layout.of_kind("param")}
            if {name for name, _ in module.named_parameters(remove_duplicate=False)} != names:
                raise NotStacked("it has tied or frozen parameters")
            if unknown_words(trainer):
                raise NotStacked("the data has words that an embedding does not know")
            module.train()  # as it is trained, whatever it was handed in as
            if not trainer.binding.layout.plain:
                raise NotStacked("its buffers change as it trains")
            if training.augment is not None:
                raise NotStacked("pictures are augmented")
            same = training.optimizer, training.momentum, training.weight_decay, training.batch, repr(trainer.task)
            key = id(pair[0]), id(pair[1]), str(module), trainer.binding.layout, same
            return Form(key, stacked(module), losses(trainer.task), pair)
        except NotStacked as why:
            log.warning("steps are not recorded as one program: %s", why)
            return None

    def attempt(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """A result for each, or what went wrong with it."""
        found: dict[int, Result | Exception] = {}
        recorded: dict[Any, list[Job]] = {}
        others: dict[int, list[Job]] = {}
        for job in jobs:
            form = self._forms[self._owner(job)]
            if form is not None and self._can(job):
                recorded.setdefault(form.key, []).append(job)
            else:
                others.setdefault(self._owner(job), []).append(job)
        for some in recorded.values():
            for group in alike(some):
                found |= self._recorded(group)
        for i, some in others.items():
            found |= self._otherwise(i, some)
        return [found[job.ticket] for job in jobs]

    def close(self) -> None:
        self._programs.clear()

    def _can(self, job: Job) -> bool:
        """May this job be played from a record?"""
        rule = job.work.rule
        if rule is None:
            return True
        phases = rule.phases(job.work)
        plain = rule.stacks and not overrides(rule, "loss") and named(rule) not in self._refused
        return plain and len(phases) == 1 and phases[0].slices is None

    def _otherwise(self, i: int, jobs: list[Job]) -> dict[int, Result | Exception]:
        if i not in self._others:
            self._others[i] = StackTrainer(self._trainers[i])
        return dict(zip((job.ticket for job in jobs), self._others[i].attempt(jobs), strict=True))

    def _recorded(self, jobs: list[Job]) -> dict[int, Result | Exception]:
        rule = jobs[0].work.rule or PLAIN
        try:
            done = 0
            found: dict[int, Result | Exception] = {}
            while done < len(jobs):
                some = jobs[done : done + self.most]
                try:
                    found |= {result.ticket: result for result in self._train(rule, some)}
                    done += len(some)
                except torch.OutOfMemoryError:
                    self._fewer(len(some))
            return found
        except CannotRecord as why:
            self._refused.add(named(rule))
            log.warning("steps of %s are not recorded: %s", type(rule).__name__, why)
        except (MemoryError, torch.OutOfMemoryError):
            raise  # the machine's trouble, not these clients'
        except Exception as error:  # a job that fails alone too says so itself
            log.debug("a stack failed: %s", error)
        by_owner: dict[int, list[Job]] = {}
        for job in jobs:
            by_owner.setdefault(self._owner(job), []).append(job)
        return {t: answer for i, some in by_owner.items() for t, answer in self._otherwise(i, some).items()}

    def _fewer(self, clients: int) -> None:
        if clients == 1:
            raise MemoryError("the device has no memory for one client")
        self._programs.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.most = (clients + 1) // 2
        log.warning("no memory for stacks of %d clients: %d are trained at a time", clients, self.most)

    def _train(self, rule: LocalRule, jobs: list[Job]) -> list[Result]:
        owners = [self._owner(job) for job in jobs]
        own = [self._trainers[i] for i in owners]
        plans = [trainer.plan(trainer.own(job)) for trainer, job in zip(own, jobs, strict=True)]
        local = [trainer.local_job(job, job, plan) for trainer, job, plan in zip(own, jobs, plans, strict=True)]
        batch = max(min(plan.batch, plan.job.num_examples) for plan in plans)
        batch = min(1 << (batch - 1).bit_length(), plans[0].batch)  # few sizes, few programs
        program = self._program(owners[0], rule, len(jobs), batch, local[0])
        steps = [steps_of(plan, self._rows[i][1], batch) for i, plan in zip(owners, plans, strict=True)]
        begun = [self._begin(rule, job, plan) for job, plan in zip(local, plans, strict=True)]
        carries = [carry for carry, _ in begun]
        w, carry = program.run(local, carries, [plan.rate(0) for plan in plans], [plan.noise for plan in plans], steps)
        results = []
        for i, (job, plan) in enumerate(zip(jobs, plans, strict=True)):
            end = w[i].clone()  # of its own: a row would keep the whole stack alive
            own_carry = None if carry is None else carry_of(carry, i)
            extras, memory = self._end(rule, local[i], end, own_carry, plan, begun[i][1])
            results.append(Result(job.ticket, end, job.num_examples, plan.steps, extras, memory))
        return results

    def _begin(self, rule: LocalRule, job: LocalJob, plan: Plan) -> tuple[Any, list[Tensor]]:
        """The rule's carry, and where its draws are then: what it draws comes from the job's own key."""
        if not overrides(rule, "begin"):
            return rule.begin(job), []
        with seeded(self._sources, plan.noise):
            return rule.begin(job), states(self._sources)

    def _end(
        self, rule: LocalRule, job: LocalJob, local: Tensor, carry: Any, plan: Plan, drawn: list[Tensor]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        if not overrides(rule, "end"):
            return rule.end(job, local, carry)
        with seeded(self._sources, plan.noise):
            if drawn:
                restore(self._sources, drawn)
            return rule.end(job, local, carry)

    def _program(self, owner: int, rule: LocalRule, clients: int, batch: int, like: LocalJob) -> Program:
        form, trainer = self._forms[owner], self._trainers[owner]
        assert form is not None
        size = min(rounded(clients), self.most)
        shapes = tuple((name, tuple(t.shape)) for name, t in (*like.extras.items(), *like.memory.items()))
        key = form.key, named(rule), size, batch, shapes
        program = self._programs.pop(key, None) or Program(
            form.forward,
            form.losses,
            form.pair,
            trainer.binding.layout,
            trainer.training,
            rule,
            size,
            batch,
            trainer.binding.w.dtype,
            self._pool,
        )
        self._programs[key] = program  # the newest last
        if len(self._programs) > KEPT:
            del self._programs[next(iter(self._programs))]
        return program


def rounded(clients: int) -> int:
    """The next of a few sizes, an eighth more at most: so that few programs do for stacks of every size."""
    unit = 1 << max(0, clients.bit_length() - 4)
    return -(-clients // unit) * unit


def steps_of(plan: Plan, rows_of: Callable[[int], Tensor], batch: int) -> Steps:
    """The examples of a plan of one phase, step by step."""
    own = rows_of(plan.job.client)
    chosen, sizes = np.zeros((plan.steps, batch), dtype=np.int32), np.zeros(plan.steps, dtype=np.int64)
    step = 0
    for positions, many, _ in plan.epochs(0):
        rows = own.index_select(0, positions).numpy()
        whole = len(rows) // batch if many[0] == batch else 0
        chosen[step : step + whole] = rows[: whole * batch].reshape(whole, batch)
        at = whole * batch
        for i in range(whole, len(many)):
            chosen[step + i, : many[i]] = rows[at : at + many[i]]
            at += many[i]
        sizes[step : step + len(many)] = many
        step += len(many)
    return chosen, sizes


def losses(task: Task) -> Losses:
    """The loss of single examples, whose mean over a batch is the task's."""
    if type(task) is Classification and task.criterion is None:
        return lambda outputs, y: _over_places(cross_entropy(outputs, y, reduction="none"))
    if type(task) is Regression and task.criterion is None:
        return lambda outputs, y: _over_places(mse_loss(outputs.reshape(y.shape), y, reduction="none"))
    raise NotStacked(f"the loss of {type(task).__name__} is not known to be a mean over examples")


def _over_places(each: Tensor) -> Tensor:
    return each if each.dim() == 1 else each.flatten(1).mean(1)
