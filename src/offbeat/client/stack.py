"""Local training of many clients in one tensor program: the same plans and the same descent, on stacked vectors.

Each row of a stack is one client; `gather` has the examples of a step, `kernel` its gradient. Clients that are done
stay as they are.

What a rule does once a job (`begin`, `end`) is done client by client: it may look at the client's data. Models that
cannot be mapped (a kernel that draws by itself, control flow on values) and rules that say so train one by one, which
is said once.

With several cores a stack is dealt out to as many threads: the operations of a step are large and do not hold the
interpreter. Who trains with whom depends on the jobs and on the number of cores alone, never on time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from offbeat.client.chain import Chain
from offbeat.client.dropout import step_keys
from offbeat.client.gather import Group, steps
from offbeat.client.gradient import overrides
from offbeat.client.kernel import ClosedForm, Kernel, Mapped
from offbeat.client.plain import is_plain, train_plain
from offbeat.client.plan import Plan
from offbeat.client.randomness import generators, restore, seeded, states
from offbeat.client.training import Trainer
from offbeat.core.errors import ProtocolError
from offbeat.core.jobs import PLAIN, Job, Result, carry_of, column, handed_back, stacked_carry, stacked_job, stretch
from offbeat.core.protocol import LocalJob, LocalRule

log = logging.getLogger("offbeat")
T = TypeVar("T")

MEMORY = 2**28  # bytes a stack may take, about
_NEAR = 2**21  # bytes of examples that are better read again soon: beyond what a core keeps near, a stack is slower
_VECTORS = 10  # of a client's model in a stack: base, start, w, its gradient, the optimizer's, the rule's
_COPIES = 16  # of a client's batch, by what a model makes of it


class StackTrainer:
    """train(jobs) -> results, in order. Equal to the trainer's own, one by one, within rounding.

    `most` is how many jobs may be stacked: a number of this model and this training, not of this machine.
    """

    def __init__(self, trainer: Trainer, cores: int = 1, memory: int = MEMORY) -> None:
        self._trainer, self._cores = trainer, cores
        binding = trainer.binding
        self._chain = Chain.of(binding.module, binding.layout, trainer.task, trainer.data)
        self.most = cores * self._fit(memory // cores)
        self._modules = [binding.module]  # one for each thread
        self._sources = generators(binding.vector.device)
        self._pool: ThreadPoolExecutor | None = None
        self._said: set[str] = set()
        self._one_by_one = False  # once it is known that it has to be

    def _fit(self, memory: int) -> int:
        """How many jobs make up a stack of one thread."""
        binding, examples = self._trainer.binding, self._trainer.training.batch * self._trainer.data.width
        size = binding.vector.element_size()
        most = memory // (size * (_VECTORS * binding.layout.size + _COPIES * examples))
        return max(1, most if self._chain is None else min(most, max(8, _NEAR // (size * examples))))

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
        for group in _alike(jobs):
            found |= zip((job.ticket for job in group), self._train(group), strict=True)
        return [found[job.ticket] for job in jobs]

    def close(self) -> None:
        """Let go of the threads; the next stack would start new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _train(self, jobs: list[Job]) -> list[Result | Exception]:
        rule = jobs[0].work.rule or PLAIN
        if not rule.stacks:
            self._say(f"{type(rule).__name__} says so")
        if self._one_by_one or not rule.stacks or len(jobs) == 1:
            return [self._alone(job) for job in jobs]
        try:
            return [*self._stacked(jobs)]
        except (MemoryError, torch.OutOfMemoryError):
            half = len(jobs) // 2
            return [*self._train(jobs[:half]), *self._train(jobs[half:])]
        # an operation vmap cannot map; or a job that fails alone too, which then says so itself
        except Exception as error:
            answers = [self._alone(job) for job in jobs]
            if not any(isinstance(answer, Exception) for answer in answers):
                self._one_by_one = True
                self._say(f"{type(error).__name__}: {error}".splitlines()[0])
            return answers

    def _alone(self, job: Job) -> Result | Exception:
        try:
            return self._trainer(job)
        except MemoryError:
            raise  # the machine's trouble, not this client's
        except Exception as error:
            return error

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            log.warning("clients are trained one by one: they cannot be stacked (%s)", why)

    def _stacked(self, jobs: list[Job]) -> list[Result]:
        trainer, chain, parts = self._trainer, self._chain, self._dealt(jobs)
        found: list[Result] = []
        if chain is not None and is_plain(jobs[0], trainer.training):
            found = [
                r for part in self._together([partial(train_plain, trainer, chain, p) for p in parts]) for r in part
            ]
        else:
            found = self._with_rule(parts)
        by_ticket = {result.ticket: result for result in found}
        return [by_ticket[job.ticket] for job in jobs]

    def _with_rule(self, parts: list[list[Job]]) -> list[Result]:
        # a loss of the rule's own looks at what enters the head, which a closed form does not have
        chain = None if overrides(parts[0][0].work.rule or PLAIN, "loss") else self._chain
        while len(self._modules) < len(parts) and chain is None:
            self._modules.append(deepcopy(self._modules[0]))
        modules = self._modules if chain is None else [self._modules[0]] * len(parts)
        stacks = [Stack(self._trainer, part, chain or module) for part, module in zip(parts, modules, strict=False)]
        with torch.enable_grad(), seeded(self._sources, 0):
            for stack in stacks:
                stack.begin()
            before = states(self._sources)
            self._together([stack.descend for stack in stacks])
            if not all(map(torch.equal, before, states(self._sources))):
                raise ProtocolError(
                    f"{parts[0][0].work.rule!r} draws at every step: of a stack that is nobody's draw; let it say "
                    "stacks = False"
                )
            return [result for stack in stacks for result in stack.results()]

    def _dealt(self, jobs: list[Job]) -> list[list[Job]]:
        """A part for each core, none empty, with about as much to do: like cards, the longest first."""
        if self._cores == 1:
            return [jobs]
        steps = [self._trainer.steps(job.client, job.work, job.num_examples) for job in jobs]
        ranked = [jobs[i] for i in sorted(range(len(jobs)), key=lambda i: -steps[i])]
        return [ranked[first :: self._cores] for first in range(min(self._cores, len(ranked)))]

    def _together(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """The first here, the others in threads; one thread each."""
        if len(tasks) > 1 and self._pool is None:
            one = torch.set_num_threads, (1,)
            self._pool = ThreadPoolExecutor(self._cores - 1, "stack", initializer=one[0], initargs=one[1])
        others = [self._pool.submit(task) for task in tasks[1:]] if self._pool is not None else []
        try:
            first = tasks[0]()
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]


def _alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that can be stacked: one rule, the same number of phases, extras of the same names and shapes."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        work, key = job.work, None  # of work that is nothing but work
        if work.rule is not None or work.extras:
            extras = tuple((name, tuple(extra.shape)) for name, extra in sorted(work.extras.items()))
            slices = tuple(phase.slices for phase in (work.rule or PLAIN).phases(work))
            key = _named(work.rule), slices, extras
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def _named(rule: LocalRule | None) -> Any:
    """Equal rules are one; a rule that cannot be hashed is only itself."""
    try:
        hash(rule)
    except TypeError:
        return id(rule)
    return rule


class Planned:
    """One job of a stack, before its first step."""

    __slots__ = ("job", "local", "plan", "sent")

    def __init__(self, trainer: Trainer, sent: Job) -> None:
        self.sent, self.job = sent, trainer.own(sent)
        self.plan: Plan = trainer.plan(self.job)
        self.local: LocalJob = trainer.local_job(sent, self.job, self.plan)


class Stack:
    """One stack of jobs: `begin` and `results` are each job's own, one after the other, and may draw; between them
    `descend` is all of them at once, and draws nothing.
    """

    def __init__(self, trainer: Trainer, jobs: list[Job], model: Chain | nn.Module) -> None:
        self._trainer, self._layout = trainer, trainer.binding.layout
        self._planned = planned = [Planned(trainer, job) for job in jobs]
        self._rule: LocalRule = jobs[0].work.rule or PLAIN
        self._plans = [one.plan for one in planned]
        self._job = stacked_job([one.local for one in planned])
        self._vectors = self._job.base.clone()
        self.w = self._layout.trainable(self._vectors)  # a view: params come first
        self._sources = generators(self.w.device)
        self._draws = overrides(self._rule, "begin") or overrides(self._rule, "end")  # or may, at least
        self._carry: Any = None
        self._drawn: list[list[Tensor]] = []  # where each job's draws are after `begin`
        self.kernel: Kernel
        if isinstance(model, Chain):
            self.kernel, self._mapped = ClosedForm(model), None
        else:
            self.kernel = self._mapped = Mapped(model, self._layout, trainer.task, self._rule, self._job)
            self._mapped.buffers = trainer.buffers(self._vectors)

    def begin(self) -> None:
        carries = []
        for one in self._planned:
            if not self._draws:
                carries.append(self._rule.begin(one.local))
                continue
            with seeded(self._sources, one.plan.noise):  # what a rule draws comes from the job's own key
                carries.append(self._rule.begin(one.local))
                self._drawn.append(states(self._sources))
        self._carry = stacked_carry(carries)

    def descend(self) -> None:
        with torch.enable_grad(), self.kernel.serve():
            for number, phase in enumerate(self._plans[0].phases):
                lr = column([plan.rate(number) for plan in self._plans], self.w)
                taken, optimizer = self._steps(number), self._trainer.training.fresh()
                _, self._carry = stretch(self._rule, self._job, phase, lr, self.w, taken, optimizer, self._carry)
        if self._mapped is not None:
            self._trainer.write_buffers(self._vectors, self._mapped.buffers)

    def results(self) -> list[Result]:
        return [self._result(i) for i in range(len(self._planned))]

    def _result(self, i: int) -> Result:
        one, local = self._planned[i], self._vectors[i].clone()  # of its own: a row would keep the whole stack alive
        if self._draws:
            restore(self._sources, self._drawn[i])
        extras, memory = self._rule.end(one.local, local, carry_of(self._carry, i))
        result = Result(one.sent.ticket, local, one.job.num_examples, one.plan.steps, extras, memory)
        return handed_back(one.sent, result, self._layout) if self._trainer.training.bn == "local" else result

    # ------------------------------------------------------------ steps

    def _steps(self, phase: int) -> Iterator[tuple[StackGradient, Tensor | None]]:
        """The gradient of each step, and which clients it moves; None: all of them."""
        device = self.w.device
        noise = torch.tensor([plan.noise for plan in self._plans], device=device)
        done = torch.tensor([sum(plan.counts[:phase]) for plan in self._plans], device=device)
        counts = [plan.counts[phase] for plan in self._plans]
        for step, groups in enumerate(steps(self._trainer.data, self._plans, phase, self.kernel.pads)):
            keys = step_keys(noise, done + step) if self.kernel.draws else noise
            active = None
            if step >= min(counts):
                active = torch.tensor([count > step for count in counts], device=device)[:, None]
            yield StackGradient(self, groups, keys), active


class StackGradient:
    """grad(points) of one step of a stack; rows that are done have no gradient."""

    def __init__(self, stack: Stack, groups: list[Group], keys: Tensor) -> None:
        self._stack, self._groups, self._keys = stack, groups, keys
        self._first = True

    def __call__(self, points: Tensor) -> Tensor:
        w, kernel = self._stack.w, self._stack.kernel
        moves = self._first and points.data_ptr() == w.data_ptr() and points.shape == w.shape
        self._first = self._first and not moves
        out: Tensor | None = None
        for group in self._groups:
            grad = kernel.gradient(points, group, self._keys, moves)
            if group.rows is None:
                return grad
            out = torch.zeros_like(points) if out is None else out
            out.index_copy_(0, group.rows, grad)
        assert out is not None
        return out
