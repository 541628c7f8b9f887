"""Train stacks of clients on a GPU with recorded CUDA graphs, which are cached.

Jobs with one rule use a program of the next larger size. Jobs of several runs share a program if model, data and
optimizer are equal. Unsupported jobs (other layers, losses that are not means over examples, rules with phases) are
trained by `Dispatcher`, with one warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from offbeat.core.jobs import Job, Result, extract_client_statistics, select_carry, stack_carries, stack_jobs, to_column
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.training.cuda.graph_step import CannotRecord, GraphProgram, Losses
from offbeat.training.cuda.linear_softmax import LinearSoftmax, copy_vectors, is_sgd_with_pull
from offbeat.training.dispatch import Dispatcher, group_by_work
from offbeat.training.dropout import SUPPORTED
from offbeat.training.gradient import device_generators, overrides
from offbeat.training.rule_hooks import RuleHooks, has_hooks, rule_key
from offbeat.training.stacked.batch_order import concatenate_indexes, draw_batch_order
from offbeat.training.stacked.layers import Forward, NotStackable, stack_module
from offbeat.training.stacked.masked_batch_norm import NORMS
from offbeat.training.stacked.stack_check import unknown_tokens
from offbeat.training.tasks import Classification, Regression, Task
from offbeat.training.trainer import Trainer

log = logging.getLogger("offbeat")

MAX_STACKED_JOBS = 1024  # clients in a stack
MAX_PROGRAMS = 64  # programs


@dataclass(frozen=True)
class ProgramKey:
    """The properties that jobs sharing a program have in common."""

    key: Hashable
    forward: Forward
    losses: Losses
    pair: tuple[Tensor, Tensor]
    draws: bool  # does the model drop anything?
    norms: bool  # has it BatchNorm?


class CudaTrainer:
    """Train many jobs on a GPU: `train_many(jobs)` returns results in order; `owner` maps a job to its trainer."""

    def __init__(
        self, trainers: Sequence[Trainer], owner: Callable[[Job], int] | None = None, max_jobs: int = MAX_STACKED_JOBS
    ) -> None:
        self._trainers, self._owner, self.max_jobs = trainers, owner, max_jobs
        self._placed = concatenate_indexes([trainer.data.index for trainer in trainers])
        forms: dict[Hashable, ProgramKey] = {}  # equal ones are one, which is quick to tell
        keys = [self._program_key(trainer, index.pair) for trainer, index in zip(trainers, self._placed, strict=True)]
        self._forms = [None if form is None else forms.setdefault(form.key, form) for form in keys]
        self._straight = {  # of the forms that need no record
            id(form): LinearSoftmax.for_trainer(trainer, form.pair)
            for form, trainer in zip(self._forms, trainers, strict=True)
            if form is not None and forms.pop(form.key, None) is not None
        }
        self._others: dict[int, Dispatcher] = {}
        self._sources = device_generators(trainers[0].binding.vector.device)
        self._programs: dict[Hashable, GraphProgram] = {}
        self._refused: set[Hashable] = set()  # rules that cannot be recorded, each with a form
        self._said: set[str] = set()
        self._pool = _graph_pool()

    def _program_key(self, trainer: Trainer, pair: tuple[Tensor, Tensor]) -> ProgramKey | None:
        """Return the properties that select a program, or None with a warning if the model has none."""
        module, training = trainer.binding.module, trainer.training
        try:
            names = {s.name for s in trainer.binding.layout.of_kind("param")}
            if {name for name, _ in module.named_parameters(remove_duplicate=False)} != names:
                raise NotStackable("it has tied or frozen parameters")
            if (reason := unknown_tokens(trainer)) is not None:
                raise NotStackable(reason)
            module.train()  # as it is trained, whatever it was handed in as
            if not _statistic_names(module) >= {s.name for s in trainer.binding.layout.slices if s.kind != "param"}:
                raise NotStackable("it has buffers other than BatchNorm's (of one or two dimensions)")
            if training.augment is not None:
                raise NotStackable("pictures are augmented")
            same = training.optimizer, training.momentum, training.weight_decay, training.batch, training.bn
            key = id(pair[0]), id(pair[1]), str(module), trainer.binding.layout, same, repr(trainer.task)
            draws = any(type(m) in SUPPORTED for m in module.modules())
            norms = any(type(m) in NORMS for m in module.modules())
            if norms and training.batch == 1:
                raise NotStackable("a batch of one example may have no statistics")
            return ProgramKey(key, stack_module(module), example_losses(trainer.task), pair, draws, norms)
        except NotStackable as why:
            log.warning("steps are not recorded as one program: %s", why)
            return None

    def train_many(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """Return a result or an exception for each job."""
        recorded: dict[int, list[Job]] = {}
        others: dict[int, list[Job]] = {}
        works = self._by_work(jobs)
        for (owner, _), some in works.items():
            form = self._forms[owner]
            can = [] if form is None else self._graph_jobs(some, form)
            if can:
                recorded.setdefault(id(form), []).extend(can)
            if len(can) < len(some):
                playable = {job.ticket for job in can}
                others.setdefault(owner, []).extend(job for job in some if job.ticket not in playable)
        if len(works) == 1 and not others:  # they are alike, and in order
            return self._train_recorded(list(jobs))
        results: dict[int, Result | Exception] = {}
        for group in (group for some in recorded.values() for group in self._groups(some)):
            results |= zip((job.ticket for job in group), self._train_recorded(group), strict=True)
        for i, some in others.items():
            results |= zip((job.ticket for job in some), self._train_on_host(i, some), strict=True)
        return [results[job.ticket] for job in jobs]

    def _by_work(self, jobs: Sequence[Job]) -> dict[tuple[int, int], list[Job]]:
        """Group the jobs of a run by their work."""
        first = jobs[0].work if jobs else None
        if self._owner is None and jobs and all(job.work is first for job in jobs):  # as a rule
            return {(0, id(first)): list(jobs)}
        results: dict[tuple[int, int], list[Job]] = {}
        for job, owner in zip(jobs, self._owners(jobs), strict=True):
            results.setdefault((owner, id(job.work)), []).append(job)
        return results

    def _owners(self, jobs: Sequence[Job]) -> list[int]:
        """Return the number of the trainer of each job."""
        return [0] * len(jobs) if self._owner is None else [self._owner(job) for job in jobs]

    def _groups(self, jobs: list[Job]) -> list[list[Job]]:
        """Group the jobs that can be trained together; jobs for `LinearSoftmax` form one group for all rules."""
        if self._linear_softmax_for(jobs[0]) is None:
            return group_by_work(jobs)
        plainly = {
            key: is_sgd_with_pull(rule or PLAIN_RULE) for key, rule in {id(j.work): j.work.rule for j in jobs}.items()
        }
        plain = [job for job in jobs if plainly[id(job.work)]]
        return [*([plain] if plain else []), *group_by_work([job for job in jobs if not plainly[id(job.work)]])]

    def _linear_softmax_for(self, job: Job) -> LinearSoftmax | None:
        """Return the single-layer path for the job's model and training, or None."""
        return self._straight[id(self._forms[self._owners([job])[0]])]

    def close(self) -> None:
        """Release the recorded programs and their memory."""
        self._programs.clear()

    def _graph_jobs(self, jobs: list[Job], form: ProgramKey) -> list[Job]:
        """Return the jobs, all with equal work, that a recorded graph can train."""
        work = jobs[0].work
        rule = work.rule
        if self._refused and (id(form), rule_key(rule or PLAIN_RULE)) in self._refused:
            return []
        if rule is not None:
            phases = rule.phases(work)
            if not rule.stacks or overrides(rule, "loss") or len(phases) != 1 or phases[0].slices is not None:
                return []
        # one example may have no statistics, which torch says
        return [job for job in jobs if job.num_examples > 1] if form.norms else jobs

    def _train_on_host(self, i: int, jobs: list[Job]) -> list[Result | Exception]:
        """Train jobs of one trainer with the dispatcher, without a recorded program."""
        if i not in self._others:
            self._others[i] = Dispatcher(self._trainers[i])
        return self._others[i].train_many(jobs)

    def _train_recorded(self, jobs: list[Job]) -> list[Result | Exception]:
        """Train jobs of one rule with recorded programs, and with the dispatcher if this fails."""
        rule, failed = jobs[0].work.rule or PLAIN_RULE, ""
        done: list[Result | Exception] = []
        try:
            while len(done) < len(jobs):
                some = jobs[len(done) : len(done) + self.max_jobs]
                if (trained := self._train_if_memory(rule, some)) is None:
                    self._halve_limit(len(some))
                    continue
                done += trained
            return done
        except CannotRecord as why:
            self._refused.add((id(self._forms[self._owners(jobs)[0]]), rule_key(rule)))
            log.warning("steps of %s are not recorded: %s", type(rule).__name__, why)
        except (MemoryError, torch.OutOfMemoryError):
            raise  # the machine's trouble, not these clients'
        except Exception as error:
            failed = f"{type(error).__name__}: {error}".splitlines()[0]  # not the error, which holds what it held
        by_owner: dict[int, list[Job]] = {}
        for job, owner in zip(jobs, self._owners(jobs), strict=True):
            by_owner.setdefault(owner, []).append(job)
        results: dict[int, Result | Exception] = {}
        for i, some in by_owner.items():
            results |= zip((job.ticket for job in some), self._train_on_host(i, some), strict=True)
        kind = failed.partition(":")[0]
        # a job that fails alone too says so itself
        if failed and kind not in self._said and not any(isinstance(answer, Exception) for answer in results.values()):
            self._said.add(kind)
            log.warning("a stack failed on the device, its jobs were trained otherwise: %s", failed)
        return [results[job.ticket] for job in jobs]

    def _train_if_memory(self, rule: LocalRule, jobs: list[Job]) -> Sequence[Result | Exception] | None:
        """Return None if memory is insufficient; everything the attempt allocated is released."""
        try:
            return self._train(rule, jobs)
        except torch.OutOfMemoryError:
            return None

    def _halve_limit(self, clients: int) -> None:
        """Release all programs and halve the size of stacks."""
        if clients == 1:
            raise MemoryError("the device has no memory for one client")
        self._programs.clear()
        self._pool = _graph_pool()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        self.max_jobs = (clients + 1) // 2
        log.warning("no memory for stacks of %d clients: %d are trained at a time", clients, self.max_jobs)

    def _train(self, rule: LocalRule, jobs: list[Job]) -> Sequence[Result | Exception]:
        """Train one stack of jobs with a recorded program or the kernel for a linear layer."""
        owners = self._owners(jobs)
        straight = self._linear_softmax_for(jobs[0])
        if straight is not None and is_sgd_with_pull(rule):  # then all of them do
            works = [(self._trainers[owner], some) for (owner, _), some in self._by_work(jobs).items()]
            return straight.train_many(jobs, works, [self._placed[i] for i in owners], self._sources)
        trainers = [self._trainers[i] for i in owners]
        placed = [self._placed[i] for i in owners]
        plans = [trainer.make_plan(trainer.prepare_job(job)) for trainer, job in zip(trainers, jobs, strict=True)]
        quiet = not (has_hooks(rule) or rule.memory or jobs[0].work.extras)
        all_hooks = (
            []
            if quiet
            else [RuleHooks(t, j, self._sources, plan) for t, j, plan in zip(trainers, jobs, plans, strict=True)]
        )
        local = [hooks.local_job for hooks in all_hooks]
        batch = max(plan.largest_batch for plan in plans)
        batch = min(1 << (batch - 1).bit_length(), max(batch, plans[0].batch))  # few sizes, few programs
        program, form = self._program(owners[0], rule, len(jobs), batch, local), self._forms[owners[0]]
        assert form is not None
        # who is too few is the first, standing still
        filled = [*range(len(jobs)), *[0] * (program.clients - len(jobs))]
        rates = [plans[i].learning_rate(0) for i in filled]
        if quiet:
            begins = [plan.job for plan in plans]
            whole, carry = _stacked_local_job(begins, filled, [plans[i].lr for i in filled], trainers[0]), None
        else:
            whole = stack_jobs([local[i] for i in filled])
            carry = None if all_hooks[0].carry is None else stack_carries([all_hooks[i].carry for i in filled])
            for hooks in all_hooks:
                hooks.carry = None  # it may be as large as a model, and is in the stack's now
        noise = [plans[i].noise_seed for i in filled] if form.draws else []
        taken, cut = [plan.phase_steps[0] for plan in plans], (plans[0].batch, plans[0].merge_last)
        orders = draw_batch_order(jobs, taken, placed, *cut, stack_rows=program.clients)
        vectors, carry = program.run(whole, carry, rates, noise, orders)
        ends = copy_vectors(vectors[: len(jobs)].unbind(0))
        if quiet:
            results = [
                Result(job.ticket, end, job.num_examples, plan.steps)
                for job, plan, end in zip(jobs, plans, ends, strict=True)
            ]
        else:
            carries = [None if carry is None else select_carry(carry, i) for i in range(len(jobs))]
            results = [
                hooks.result(end, row_carry) for hooks, end, row_carry in zip(all_hooks, ends, carries, strict=True)
            ]
        return self._restore_statistics(trainers, jobs, results)

    @staticmethod
    def _restore_statistics(trainers: list[Trainer], jobs: list[Job], results: list[Result]) -> list[Result]:
        """Restore the server's statistics in results of clients that keep their own."""
        if trainers[0].training.bn != "local":
            return results
        return [
            extract_client_statistics(job, result, trainers[0].binding.layout)
            for job, result in zip(jobs, results, strict=True)
        ]

    def _program(self, owner: int, rule: LocalRule, clients: int, batch: int, like: list[LocalJob]) -> GraphProgram:
        """Return the program for a stack, which is made if none is cached."""
        form, trainer = self._forms[owner], self._trainers[owner]
        assert form is not None
        size = min(round_up_clients(clients), self.max_jobs)
        shapes = tuple(
            (name, tuple(t.shape)) for job in like[:1] for name, t in (*job.extras.items(), *job.memory.items())
        )
        key = id(form), rule_key(rule), size, batch, shapes
        program = self._programs.pop(key, None) or GraphProgram(
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
        if len(self._programs) > MAX_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program


def _statistic_names(module: nn.Module) -> set[str]:
    """Return the names of BatchNorm's buffers."""
    norms = ((prefix, m) for prefix, m in module.named_modules() if type(m) in NORMS)
    return {f"{prefix}.{name}" if prefix else name for prefix, m in norms for name, _ in m.named_buffers()}


def round_up_clients(clients: int) -> int:
    """Round up to one of few sizes, at most an eighth larger, so few programs suffice."""
    unit = 1 << max(0, clients.bit_length() - 4)
    return -(-clients // unit) * unit


def stack_bases(jobs: Sequence[Job], which: Sequence[int]) -> Tensor:
    """Return the initial vectors of these jobs, one per row; many are the same vector."""
    places: dict[int, int] = {}
    results: list[Tensor] = []
    for job in jobs:
        if id(job.base) not in places:
            places[id(job.base)] = len(results)
            results.append(job.base)
    rows = torch.tensor([places[id(jobs[i].base)] for i in which])
    return torch.stack(results).index_select(0, rows.to(results[0].device, non_blocking=True))


def _stacked_local_job(jobs: list[Job], filled: list[int], rates: list[float], trainer: Trainer) -> LocalJob:
    """Return one local job for a stack, with the initial vectors only."""
    base, layout = stack_bases(jobs, filled), trainer.binding.layout
    start = layout.trainable(base)
    return LocalJob(base, start, layout, to_column(rates, start), {}, {}, trainer.probe)


def _graph_pool() -> Any:
    """Return the memory pool that recorded programs share."""
    return torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None


def example_losses(task: Task) -> Losses:
    """Return the loss of single examples whose mean over a batch is the task's loss."""
    if type(task) is Classification and task.criterion is None:
        return lambda outputs, y: _mean_over_positions(cross_entropy(outputs, y, reduction="none"))
    if type(task) is Regression and task.criterion is None:
        return lambda outputs, y: _mean_over_positions(mse_loss(outputs.reshape(y.shape), y, reduction="none"))
    raise NotStackable(f"the loss of {type(task).__name__} is not known to be a mean over examples")


def _mean_over_positions(each: Tensor) -> Tensor:
    """Return the mean loss of each example over its positions."""
    return each if each.dim() == 1 else each.flatten(1).mean(1)
