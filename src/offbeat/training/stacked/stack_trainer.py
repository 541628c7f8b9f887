"""Train many clients in one tensor program, with the plans and the descent of single jobs on stacked vectors.

Dense chains without a rule use closed-form gradients, single layers a compiled loop if Numba is installed, other models
a `JobStack`. Models that do not support vmap, and rules that say so, train one by one, with one warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import ProtocolError
from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.training.cuda.linear_softmax import is_sgd_with_pull
from offbeat.training.descent import device_generators, get_states, seeded
from offbeat.training.gradient import overrides
from offbeat.training.rule_hooks import try_call
from offbeat.training.stacked.compiled_linear import CompiledLinear, CompiledLoopUnavailable, warn_stacked
from offbeat.training.stacked.dense_chain import DenseChain
from offbeat.training.stacked.job_stack import JobStack
from offbeat.training.stacked.stack_batches import ReusableBuffer, stack_steps
from offbeat.training.trainer import Trainer, Training

log = logging.getLogger("offbeat")

MAX_STACK_BYTES = 2**28  # bytes a stack may take, about
MIN_PRODUCTS_PER_PROCESS = (
    2**23
)  # products of a weight and an example in a job that is worth the way to another process: a millisecond
MIN_STACKED_JOBS = 5  # jobs from which on a mapped stack is quicker on a CPU than training one by one
SAMPLED_CLIENTS = 64  # clients that stand for all
_CACHE_BYTES = (
    2**21
)  # bytes of examples that are better read again soon: beyond what a core keeps near, a stack is slower
_VECTORS = 10  # of a client's model in a stack: base, start, w, its gradient, the optimizer's, the rule's
_COPIES = 16  # of a client's batch, by what a model makes of it


class StackTrainer:
    """Train many jobs at once: `train(jobs)` returns results in order, equal to the trainer's within rounding.

    `max_jobs`, the limit of a stack, depends on model and training settings but not on the machine.
    """

    def __init__(self, trainer: Trainer, memory: int = MAX_STACK_BYTES) -> None:
        self._trainer = trainer
        binding = trainer.binding
        self._chain = DenseChain.for_module(binding.module, binding.layout, trainer.task, trainer.data)
        self._compiled = CompiledLinear.for_trainer(trainer, self._chain)
        self._stack, whole = self._stack_sizes(memory)
        self.max_jobs = whole if self._compiled is not None else self._stack  # a loop does not mind how many there are
        self.light = self._chain is not None  # a step is a few products: calls weigh little
        self._least = 2 if self.light or binding.vector.is_cuda else MIN_STACKED_JOBS
        self._sources = device_generators(binding.vector.device)
        self._buffers: list[ReusableBuffer] = []  # for the examples of one stack after the other
        self._said: set[str] = set()
        self._one_by_one = has_unknown_tokens(trainer)  # or once it is known that it has to be
        if self._one_by_one:
            self._warn_once("the data has words that an embedding does not know")

    def _stack_sizes(self, memory: int) -> tuple[int, int]:
        """Return the number of jobs in a stack, and the number that memory would allow."""
        binding, examples = self._trainer.binding, self._trainer.training.batch * self._trainer.data.input_size
        size = binding.vector.element_size()
        most = memory // (size * (_VECTORS * binding.layout.size + _COPIES * examples))
        return max(1, most if self._chain is None else min(most, max(8, _CACHE_BYTES // (size * examples)))), max(
            1, most
        )

    def useful_cores(self, cores: int) -> int:
        """Return how many of these cores to use; depends on model and data but not on the speed of the machine."""
        if self._compiled is not None:
            return cores  # threads cost next to nothing
        trainer, data = self._trainer, self._trainer.data
        some = data.sample(SAMPLED_CLIENTS)
        steps = sum(trainer.count_steps(client, LocalWork(), data.size(client)) for client in some) / len(some)
        work = steps * trainer.training.batch * trainer.binding.layout.size
        return 1 if self.light and work < MIN_PRODUCTS_PER_PROCESS else cores

    def use_threads(self, cores: int) -> bool:
        """Use threads of this process if possible, and return whether it is."""
        if self._compiled is not None:
            self._compiled.use_threads(cores)
        return self._compiled is not None

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        results = []
        for answer in self.train_many(jobs):
            if isinstance(answer, Exception):
                raise answer
            results.append(answer)
        return results

    def train_many(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """Return a result or an exception for each job; a failing job does not affect the others."""
        results: dict[int, Result | Exception] = {}
        for group in group_alike(jobs):
            size = self._stack if self._compiled_for(group[0]) is None else len(group)
            for first in range(0, len(group), size):
                some = group[first : first + size]
                results |= zip((job.ticket for job in some), self._train(some), strict=True)
        return [results[job.ticket] for job in jobs]

    def close(self) -> None:
        self._buffers.clear()
        if self._compiled is not None:
            self._compiled.close()

    def _train(self, jobs: list[Job]) -> list[Result | Exception]:
        rule = jobs[0].work.rule or PLAIN_RULE
        if not rule.stacks:
            self._warn_once(f"{type(rule).__name__} says so")
        if self._one_by_one or not rule.stacks or (len(jobs) < self._least and not self._is_fast_alone(jobs[0])):
            return [try_call(self._trainer, job) for job in jobs]
        try:
            return [*self._train_stacked(jobs)]
        except (MemoryError, torch.OutOfMemoryError):
            if len(jobs) == 1:
                raise  # the machine's trouble, not this client's
            half = len(jobs) // 2
            return [*self._train(jobs[:half]), *self._train(jobs[half:])]
        except CompiledLoopUnavailable as why:
            warn_stacked(str(why))
            self.close()
            self._compiled, self.max_jobs = None, self._stack
            return self.train_many(jobs)
        # an operation vmap cannot map; or a job that fails alone too, which then says so itself
        except Exception as error:
            answers = [try_call(self._trainer, job) for job in jobs]
            if not any(isinstance(answer, Exception) for answer in answers):
                self._one_by_one = True
                self._warn_once(f"{type(error).__name__}: {error}".splitlines()[0])
            return answers

    def _is_fast_alone(self, job: Job) -> bool:
        """Return whether a fast path exists that is worthwhile for a single job."""
        return self._uses_dense_sgd(job) or self._compiled_for(job) is not None

    def _uses_dense_sgd(self, job: Job) -> bool:
        return self._chain is not None and uses_plain_sgd(job, self._trainer.training)

    def _compiled_for(self, job: Job) -> CompiledLinear | None:
        return self._compiled if is_sgd_with_pull(job.work.rule or PLAIN_RULE) else None

    def _warn_once(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            log.warning("clients are trained one by one: they cannot be stacked (%s)", why)

    def _train_stacked(self, jobs: list[Job]) -> list[Result]:
        loop = self._compiled_for(jobs[0])
        if loop is not None and jobs[0].work.rule is None:
            return loop.train(jobs)
        if self._chain is not None and self._uses_dense_sgd(jobs[0]):
            return train_dense(self._trainer, self._chain, jobs, self._buffers)
        # a loss of the rule's own looks at what enters the head, which a closed form does not have
        closed = None if overrides(jobs[0].work.rule or PLAIN_RULE, "loss") else self._chain
        with torch.enable_grad(), seeded(self._sources, 0):
            stack = JobStack(self._trainer, jobs, closed or self._trainer.binding.module, self._buffers, loop)
            before = get_states(self._sources)
            stack.descend()
            if not all(map(torch.equal, before, get_states(self._sources))):
                raise ProtocolError(
                    f"{jobs[0].work.rule!r} draws random numbers at every step, which a stack cannot assign to a "
                    "client: set stacks = False in the rule"
                )
            return stack.results()


def has_unknown_tokens(trainer: Trainer) -> bool:
    """Return whether inputs exceed the rows of an embedding, which in a stack would read another client's row."""
    sizes = [m.num_embeddings for m in trainer.binding.module.modules() if isinstance(m, nn.Embedding)]
    tokens = trainer.data.integer_range() if sizes else None
    return tokens is not None and not 0 <= tokens[0] <= tokens[1] < min(sizes)


def group_alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group jobs that can be stacked: equal rules, numbers of phases, and names and shapes of extras."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        work, key = job.work, None  # of work that is nothing but work
        if work.rule is not None or work.extras:
            extras = tuple((name, tuple(extra.shape)) for name, extra in sorted(work.extras.items()))
            slices = tuple(phase.slices for phase in (work.rule or PLAIN_RULE).phases(work))
            key = rule_key(work.rule), slices, extras
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def rule_key(rule: LocalRule | None) -> Any:
    """Return a key that is equal for equal rules; unhashable rules equal only themselves."""
    try:
        hash(rule)
    except TypeError:
        return id(rule)
    return rule


def uses_plain_sgd(job: Job, training: Training) -> bool:
    """Return whether this work is plain SGD without a rule."""
    still = not (training.momentum or training.weight_decay) and training.augment is None and training.bn == "shared"
    return job.work.rule is None and training.optimizer == "sgd" and still


def train_dense(
    trainer: Trainer, chain: DenseChain, jobs: Sequence[Job], buffers: list[ReusableBuffer]
) -> list[Result]:
    plans = [trainer.make_plan(trainer.prepare_job(job)) for job in jobs]
    w = torch.stack([job.base for job in jobs])
    rates = torch.tensor([plan.learning_rate(0) for plan in plans], dtype=w.dtype, device=w.device)[:, None, None]
    views, over = chain.views(w), dict[int, Tensor]()  # rates over the number of examples
    for groups in stack_steps(trainer.data, plans, 0, pads=True, buffers=buffers):
        for rows, x, y, sizes in groups:
            size = 1 if sizes is not None else x.shape[1]
            if size not in over:
                over[size] = rates / size
            if rows is None:
                chain.descend(views, x, y, sizes, over[size])
            else:
                some = w.index_select(0, rows)
                chain.descend(chain.views(some), x, y, sizes, over[size].index_select(0, rows))
                w.index_copy_(0, rows, some)
    return [  # rows of their own: a view would keep the whole stack alive
        Result(job.ticket, row.clone(), job.num_examples, plan.steps)
        for job, plan, row in zip(jobs, plans, w, strict=True)
    ]
