"""Local training of many clients in one tensor program: the same plans and the same descent, on stacked vectors.

Models that cannot be mapped (a kernel that draws by itself, control flow on values) and rules that say so train one by
one, which is said once. Chains of fully connected layers without a rule take the shortest path (`plain`), all others
that of `stacked`; a single layer is descended by a compiled loop where there is a compiler (`compiled`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from offbeat.core.errors import ProtocolError
from offbeat.core.jobs import PLAIN, Job, Result
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.training.cuda.linear_softmax import descends_plainly
from offbeat.training.gradient import overrides
from offbeat.training.rule_hooks import attempted
from offbeat.training.stacked.compiled_linear import Compiled, Unusable, say_stacked
from offbeat.training.stacked.dense_chain import Chain
from offbeat.training.stacked.dense_descent import is_plain, train_plain
from offbeat.training.stacked.job_stack import Stack
from offbeat.training.stacked.stack_batches import Room
from offbeat.training.torch_generators import generators, seeded, states
from offbeat.training.trainer import Trainer

log = logging.getLogger("offbeat")

MEMORY = 2**28  # bytes a stack may take, about
WORTH = 2**23  # products of a weight and an example in a job that is worth the way to another process: a millisecond
FEW = 5  # jobs from which on a mapped stack is quicker on a CPU than training one by one
SOME = 64  # clients that stand for all
_NEAR = 2**21  # bytes of examples that are better read again soon: beyond what a core keeps near, a stack is slower
_VECTORS = 10  # of a client's model in a stack: base, start, w, its gradient, the optimizer's, the rule's
_COPIES = 16  # of a client's batch, by what a model makes of it


class StackTrainer:
    """train(jobs) -> results, in order. Equal to the trainer's own, one by one, within rounding.

    `most` is how many jobs may be stacked: a number of this model and this training, not of this machine.
    """

    def __init__(self, trainer: Trainer, memory: int = MEMORY) -> None:
        self._trainer = trainer
        binding = trainer.binding
        self._chain = Chain.of(binding.module, binding.layout, trainer.task, trainer.data)
        self._compiled = Compiled.of(trainer, self._chain)
        self._stack, whole = self._fit(memory)
        self.most = whole if self._compiled is not None else self._stack  # a loop does not mind how many there are
        self.light = self._chain is not None  # a step is a few products: calls weigh little
        self._least = 2 if self.light or binding.vector.is_cuda else FEW
        self._sources = generators(binding.vector.device)
        self._rooms: list[Room] = []  # for the examples of one stack after the other
        self._said: set[str] = set()
        self._one_by_one = unknown_words(trainer)  # or once it is known that it has to be
        if self._one_by_one:
            self._say("the data has words that an embedding does not know")

    def _fit(self, memory: int) -> tuple[int, int]:
        """How many jobs make up a stack, and how many there would be memory for."""
        binding, examples = self._trainer.binding, self._trainer.training.batch * self._trainer.data.width
        size = binding.vector.element_size()
        most = memory // (size * (_VECTORS * binding.layout.size + _COPIES * examples))
        return max(1, most if self._chain is None else min(most, max(8, _NEAR // (size * examples)))), max(1, most)

    def hands(self, cores: int) -> int:
        """On how many of these cores stacks are trained soonest: a number of this model, its training and its data,
        never of how fast a machine is, so that it is the same everywhere.
        """
        if self._compiled is not None:
            return cores  # threads cost next to nothing
        trainer, data = self._trainer, self._trainer.data
        some = data.some(SOME)
        steps = sum(trainer.steps(client, LocalWork(), data.size(client)) for client in some) / len(some)
        work = steps * trainer.training.batch * trainer.binding.layout.size
        return 1 if self.light and work < WORTH else cores

    def spread(self, cores: int) -> bool:
        """Over so many cores, within this process: can it be?"""
        if self._compiled is not None:
            self._compiled.spread(cores)
        return self._compiled is not None

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        results = []
        for answer in self.attempt(jobs):
            if isinstance(answer, Exception):
                raise answer
            results.append(answer)
        return results

    def attempt(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """The same, with what went wrong in place of a result: a job that fails fails alone."""
        found: dict[int, Result | Exception] = {}
        for group in alike(jobs):
            size = self._stack if self._loop_for(group[0]) is None else len(group)
            for first in range(0, len(group), size):
                some = group[first : first + size]
                found |= zip((job.ticket for job in some), self._train(some), strict=True)
        return [found[job.ticket] for job in jobs]

    def close(self) -> None:
        self._rooms.clear()
        if self._compiled is not None:
            self._compiled.close()

    def _train(self, jobs: list[Job]) -> list[Result | Exception]:
        rule = jobs[0].work.rule or PLAIN
        if not rule.stacks:
            self._say(f"{type(rule).__name__} says so")
        if self._one_by_one or not rule.stacks or (len(jobs) < self._least and not self._short(jobs[0])):
            return [attempted(self._trainer, job) for job in jobs]
        try:
            return [*self._stacked(jobs)]
        except (MemoryError, torch.OutOfMemoryError):
            if len(jobs) == 1:
                raise  # the machine's trouble, not this client's
            half = len(jobs) // 2
            return [*self._train(jobs[:half]), *self._train(jobs[half:])]
        except Unusable as why:
            say_stacked(str(why))
            self.close()
            self._compiled, self.most = None, self._stack
            return self.attempt(jobs)
        # an operation vmap cannot map; or a job that fails alone too, which then says so itself
        except Exception as error:
            answers = [attempted(self._trainer, job) for job in jobs]
            if not any(isinstance(answer, Exception) for answer in answers):
                self._one_by_one = True
                self._say(f"{type(error).__name__}: {error}".splitlines()[0])
            return answers

    def _short(self, job: Job) -> bool:
        """Is a path open that pays for one job too?"""
        return self._plain(job) or self._loop_for(job) is not None

    def _plain(self, job: Job) -> bool:
        return self._chain is not None and is_plain(job, self._trainer.training)

    def _loop_for(self, job: Job) -> Compiled | None:
        return self._compiled if descends_plainly(job.work.rule or PLAIN) else None

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            log.warning("clients are trained one by one: they cannot be stacked (%s)", why)

    def _stacked(self, jobs: list[Job]) -> list[Result]:
        loop = self._loop_for(jobs[0])
        if loop is not None and jobs[0].work.rule is None:
            return loop.train(jobs)
        if self._chain is not None and self._plain(jobs[0]):
            return train_plain(self._trainer, self._chain, jobs, self._rooms)
        # a loss of the rule's own looks at what enters the head, which a closed form does not have
        closed = None if overrides(jobs[0].work.rule or PLAIN, "loss") else self._chain
        with torch.enable_grad(), seeded(self._sources, 0):
            stack = Stack(self._trainer, jobs, closed or self._trainer.binding.module, self._rooms, loop)
            before = states(self._sources)
            stack.descend()
            if not all(map(torch.equal, before, states(self._sources))):
                raise ProtocolError(
                    f"{jobs[0].work.rule!r} draws at every step: of a stack that is nobody's draw; let it say "
                    "stacks = False"
                )
            return stack.results()


def unknown_words(trainer: Trainer) -> bool:
    """Has the data numbers that an embedding has no row for? In a stack they would be a row of another client's."""
    sizes = [m.num_embeddings for m in trainer.binding.module.modules() if isinstance(m, nn.Embedding)]
    found = trainer.data.words() if sizes else None
    return found is not None and not 0 <= found[0] <= found[1] < min(sizes)


def alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that can be stacked: one rule, the same number of phases, extras of the same names and shapes."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        work, key = job.work, None  # of work that is nothing but work
        if work.rule is not None or work.extras:
            extras = tuple((name, tuple(extra.shape)) for name, extra in sorted(work.extras.items()))
            slices = tuple(phase.slices for phase in (work.rule or PLAIN).phases(work))
            key = named(work.rule), slices, extras
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def named(rule: LocalRule | None) -> Any:
    """Equal rules are one; a rule that cannot be hashed is only itself."""
    try:
        hash(rule)
    except TypeError:
        return id(rule)
    return rule
