"""Stacks of clients trained by programs that are recorded once: what a GPU needs to be kept busy.

Jobs of one rule are put into a program of the next size up; programs are kept. Jobs of several runs share a program
where their models, data and optimizers are the same. Whatever a program cannot do (models with layers of their own,
losses that are no mean over examples, rules with phases) is trained as stacks are elsewhere, and that is said once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from offbeat.core.jobs import PLAIN, Job, Result, carry_of, column, handed_back, stacked_carry, stacked_job
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.training.cuda.graph_step import CannotRecord, Losses, Program
from offbeat.training.cuda.linear_softmax import Straight, copies, descends_plainly
from offbeat.training.dropout import SERVED
from offbeat.training.gradient import overrides
from offbeat.training.rule_hooks import Asked, is_asked
from offbeat.training.stacked.batch_order import orders_of, together
from offbeat.training.stacked.layers import Forward, NotStacked, stacked
from offbeat.training.stacked.masked_batch_norm import NORMS
from offbeat.training.stacked.stack_trainer import StackTrainer, alike, named, unknown_words
from offbeat.training.tasks import Classification, Regression, Task
from offbeat.training.torch_generators import generators
from offbeat.training.trainer import Trainer

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
    draws: bool  # does the model drop anything?
    norms: bool  # has it BatchNorm?


class DeviceTrainer:
    """attempt(jobs) -> results, in order. `owner` says which trainer is a job's, where there are several."""

    def __init__(
        self, trainers: Sequence[Trainer], owner: Callable[[Job], int] | None = None, most: int = MOST
    ) -> None:
        self._trainers, self._owner, self.most = trainers, owner, most
        self._placed = together([trainer.data.in_one_place() for trainer in trainers])
        forms: dict[Any, Form] = {}  # equal ones are one, which is quick to tell
        made = [self._form(trainer, one.pair) for trainer, one in zip(trainers, self._placed, strict=True)]
        self._forms = [None if form is None else forms.setdefault(form.key, form) for form in made]
        self._straight = {  # of the forms that need no record
            id(form): Straight.of(trainer, form.pair)
            for form, trainer in zip(self._forms, trainers, strict=True)
            if form is not None and forms.pop(form.key, None) is not None
        }
        self._others: dict[int, StackTrainer] = {}
        self._sources = generators(trainers[0].binding.vector.device)
        self._programs: dict[Any, Program] = {}
        self._refused: set[Any] = set()  # rules that cannot be recorded, each with a form
        self._said: set[str] = set()
        self._pool = _memory()

    def _form(self, trainer: Trainer, pair: tuple[Tensor, Tensor]) -> Form | None:
        module, training = trainer.binding.module, trainer.training
        try:
            names = {s.name for s in trainer.binding.layout.of_kind("param")}
            if {name for name, _ in module.named_parameters(remove_duplicate=False)} != names:
                raise NotStacked("it has tied or frozen parameters")
            if unknown_words(trainer):
                raise NotStacked("the data has words that an embedding does not know")
            module.train()  # as it is trained, whatever it was handed in as
            if not _statistics(module) >= {s.name for s in trainer.binding.layout.slices if s.kind != "param"}:
                raise NotStacked("it has buffers other than BatchNorm's (of one or two dimensions)")
            if training.augment is not None:
                raise NotStacked("pictures are augmented")
            same = training.optimizer, training.momentum, training.weight_decay, training.batch, training.bn
            key = id(pair[0]), id(pair[1]), str(module), trainer.binding.layout, same, repr(trainer.task)
            draws = any(type(m) in SERVED for m in module.modules())
            norms = any(type(m) in NORMS for m in module.modules())
            if norms and training.batch == 1:
                raise NotStacked("a batch of one example may have no statistics")
            return Form(key, stacked(module), losses(trainer.task), pair, draws, norms)
        except NotStacked as why:
            log.warning("steps are not recorded as one program: %s", why)
            return None

    def attempt(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """A result for each, or what went wrong with it."""
        recorded: dict[int, list[Job]] = {}
        others: dict[int, list[Job]] = {}
        works = self._by_work(jobs)
        for (owner, _), some in works.items():
            form = self._forms[owner]
            can = [] if form is None else self._those(some, form)
            if can:
                recorded.setdefault(id(form), []).extend(can)
            if len(can) < len(some):
                playable = {job.ticket for job in can}
                others.setdefault(owner, []).extend(job for job in some if job.ticket not in playable)
        if len(works) == 1 and not others:  # they are alike, and in order
            return self._recorded(list(jobs))
        found: dict[int, Result | Exception] = {}
        for group in (group for some in recorded.values() for group in self._groups(some)):
            found |= zip((job.ticket for job in group), self._recorded(group), strict=True)
        for i, some in others.items():
            found |= zip((job.ticket for job in some), self._otherwise(i, some), strict=True)
        return [found[job.ticket] for job in jobs]

    def _by_work(self, jobs: Sequence[Job]) -> dict[tuple[int, int], list[Job]]:
        """Those of one run that are asked for the same: what holds of one of them holds of all."""
        first = jobs[0].work if jobs else None
        if self._owner is None and jobs and all(job.work is first for job in jobs):  # as a rule
            return {(0, id(first)): list(jobs)}
        found: dict[tuple[int, int], list[Job]] = {}
        for job, owner in zip(jobs, self._owners(jobs), strict=True):
            found.setdefault((owner, id(job.work)), []).append(job)
        return found

    def _owners(self, jobs: Sequence[Job]) -> list[int]:
        return [0] * len(jobs) if self._owner is None else [self._owner(job) for job in jobs]

    def _groups(self, jobs: list[Job]) -> list[list[Job]]:
        """Jobs of one form that are trained together: those that go the straight way whatever their rules are."""
        if self._straight_for(jobs[0]) is None:
            return alike(jobs)
        plainly = {
            key: descends_plainly(rule or PLAIN) for key, rule in {id(j.work): j.work.rule for j in jobs}.items()
        }
        plain = [job for job in jobs if plainly[id(job.work)]]
        return [*([plain] if plain else []), *alike([job for job in jobs if not plainly[id(job.work)]])]

    def _straight_for(self, job: Job) -> Straight | None:
        """The straight way of the job's model and training, if there is one."""
        return self._straight[id(self._forms[self._owners([job])[0]])]

    def close(self) -> None:
        self._programs.clear()

    def _those(self, jobs: list[Job], form: Form) -> list[Job]:
        """Of jobs that are asked for the same, those that may be played from a record."""
        work = jobs[0].work
        rule = work.rule
        if self._refused and (id(form), named(rule or PLAIN)) in self._refused:
            return []
        if rule is not None:
            phases = rule.phases(work)
            if not rule.stacks or overrides(rule, "loss") or len(phases) != 1 or phases[0].slices is not None:
                return []
        # one example may have no statistics, which torch says
        return [job for job in jobs if job.num_examples > 1] if form.norms else jobs

    def _otherwise(self, i: int, jobs: list[Job]) -> list[Result | Exception]:
        if i not in self._others:
            self._others[i] = StackTrainer(self._trainers[i])
        return self._others[i].attempt(jobs)

    def _recorded(self, jobs: list[Job]) -> list[Result | Exception]:
        rule, failed = jobs[0].work.rule or PLAIN, ""
        done: list[Result | Exception] = []
        try:
            while len(done) < len(jobs):
                some = jobs[len(done) : len(done) + self.most]
                if (results := self._fitting(rule, some)) is None:
                    self._fewer(len(some))
                    continue
                done += results
            return done
        except CannotRecord as why:
            self._refused.add((id(self._forms[self._owners(jobs)[0]]), named(rule)))
            log.warning("steps of %s are not recorded: %s", type(rule).__name__, why)
        except (MemoryError, torch.OutOfMemoryError):
            raise  # the machine's trouble, not these clients'
        except Exception as error:
            failed = f"{type(error).__name__}: {error}".splitlines()[0]  # not the error, which holds what it held
        by_owner: dict[int, list[Job]] = {}
        for job, owner in zip(jobs, self._owners(jobs), strict=True):
            by_owner.setdefault(owner, []).append(job)
        found: dict[int, Result | Exception] = {}
        for i, some in by_owner.items():
            found |= zip((job.ticket for job in some), self._otherwise(i, some), strict=True)
        kind = failed.partition(":")[0]
        # a job that fails alone too says so itself
        if failed and kind not in self._said and not any(isinstance(answer, Exception) for answer in found.values()):
            self._said.add(kind)
            log.warning("a stack failed on the device, its jobs were trained otherwise: %s", failed)
        return [found[job.ticket] for job in jobs]

    def _fitting(self, rule: LocalRule, jobs: list[Job]) -> Sequence[Result | Exception] | None:
        """None where there is no memory: whatever the attempt held is let go of with its frames."""
        try:
            return self._train(rule, jobs)
        except torch.OutOfMemoryError:
            return None

    def _fewer(self, clients: int) -> None:
        if clients == 1:
            raise MemoryError("the device has no memory for one client")
        self._programs.clear()
        self._pool = _memory()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        self.most = (clients + 1) // 2
        log.warning("no memory for stacks of %d clients: %d are trained at a time", clients, self.most)

    def _train(self, rule: LocalRule, jobs: list[Job]) -> Sequence[Result | Exception]:
        owners = self._owners(jobs)
        straight = self._straight_for(jobs[0])
        if straight is not None and descends_plainly(rule):  # then all of them do
            works = [(self._trainers[owner], some) for (owner, _), some in self._by_work(jobs).items()]
            return straight.answers(jobs, works, [self._placed[i] for i in owners], self._sources)
        own = [self._trainers[i] for i in owners]
        placed = [self._placed[i] for i in owners]
        plans = [trainer.plan(trainer.own(job)) for trainer, job in zip(own, jobs, strict=True)]
        quiet = not (is_asked(rule) or rule.memory or jobs[0].work.extras)
        asked = [] if quiet else [Asked(t, j, self._sources, plan) for t, j, plan in zip(own, jobs, plans, strict=True)]
        local = [one.local for one in asked]
        batch = max(plan.largest for plan in plans)
        batch = min(1 << (batch - 1).bit_length(), max(batch, plans[0].batch))  # few sizes, few programs
        program, form = self._program(owners[0], rule, len(jobs), batch, local), self._forms[owners[0]]
        assert form is not None
        # who is too few is the first, standing still
        filled = [*range(len(jobs)), *[0] * (program.clients - len(jobs))]
        rates = [plans[i].rate(0) for i in filled]
        if quiet:
            begins = [plan.job for plan in plans]
            whole, carry = _plain(begins, filled, [plans[i].lr for i in filled], own[0]), None
        else:
            whole = stacked_job([local[i] for i in filled])
            carry = None if asked[0].carry is None else stacked_carry([asked[i].carry for i in filled])
            for one in asked:
                one.carry = None  # it may be as large as a model, and is in the stack's now
        noise = [plans[i].noise for i in filled] if form.draws else []
        taken, cut = [plan.counts[0] for plan in plans], (plans[0].batch, plans[0].merge)
        orders = orders_of(jobs, taken, placed, program.clients, *cut)
        vectors, carry = program.run(whole, carry, rates, noise, orders)
        ends = copies(vectors[: len(jobs)].unbind(0))
        if quiet:
            results = [
                Result(job.ticket, end, job.num_examples, plan.steps)
                for job, plan, end in zip(jobs, plans, ends, strict=True)
            ]
        else:
            carries = [None if carry is None else carry_of(carry, i) for i in range(len(jobs))]
            results = [one.result(end, kept) for one, end, kept in zip(asked, ends, carries, strict=True)]
        return self._handed(own, jobs, results)

    @staticmethod
    def _handed(own: list[Trainer], jobs: list[Job], results: list[Result]) -> list[Result]:
        """Where statistics stay at the clients, they do."""
        if own[0].training.bn != "local":
            return results
        return [handed_back(job, result, own[0].binding.layout) for job, result in zip(jobs, results, strict=True)]

    def _program(self, owner: int, rule: LocalRule, clients: int, batch: int, like: list[LocalJob]) -> Program:
        form, trainer = self._forms[owner], self._trainers[owner]
        assert form is not None
        size = min(rounded(clients), self.most)
        shapes = tuple(
            (name, tuple(t.shape)) for job in like[:1] for name, t in (*job.extras.items(), *job.memory.items())
        )
        key = id(form), named(rule), size, batch, shapes
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


def _statistics(module: nn.Module) -> set[str]:
    """The names of BatchNorm's buffers."""
    norms = ((prefix, m) for prefix, m in module.named_modules() if type(m) in NORMS)
    return {f"{prefix}.{name}" if prefix else name for prefix, m in norms for name, _ in m.named_buffers()}


def rounded(clients: int) -> int:
    """The next of a few sizes, an eighth more at most: so that few programs do for stacks of every size."""
    unit = 1 << max(0, clients.bit_length() - 4)
    return -(-clients // unit) * unit


def bases(jobs: Sequence[Job], which: Sequence[int]) -> Tensor:
    """Where these of the jobs begin, a row each. Many begin at the same vector."""
    places: dict[int, int] = {}
    found: list[Tensor] = []
    for job in jobs:
        if id(job.base) not in places:
            places[id(job.base)] = len(found)
            found.append(job.base)
    rows = torch.tensor([places[id(jobs[i].base)] for i in which])
    return torch.stack(found).index_select(0, rows.to(found[0].device, non_blocking=True))


def _plain(jobs: list[Job], filled: list[int], rates: list[float], trainer: Trainer) -> LocalJob:
    """Jobs as one, of which a rule sees where they begin and no more."""
    base, layout = bases(jobs, filled), trainer.binding.layout
    start = layout.trainable(base)
    return LocalJob(base, start, layout, column(rates, start), {}, {}, trainer.probe)


def _memory() -> Any:
    """What recorded programs share."""
    return torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None


def losses(task: Task) -> Losses:
    """The loss of single examples, whose mean over a batch is the task's."""
    if type(task) is Classification and task.criterion is None:
        return lambda outputs, y: _over_places(cross_entropy(outputs, y, reduction="none"))
    if type(task) is Regression and task.criterion is None:
        return lambda outputs, y: _over_places(mse_loss(outputs.reshape(y.shape), y, reduction="none"))
    raise NotStacked(f"the loss of {type(task).__name__} is not known to be a mean over examples")


def _over_places(each: Tensor) -> Tensor:
    return each if each.dim() == 1 else each.flatten(1).mean(1)
