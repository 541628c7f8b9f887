"""Local training of many clients in one tensor program: the same plans and the same descent, on stacked vectors.

Each row of a stack is one client; `kernel` has the gradient of a step. Batches of one size are computed together, and
where the kernel can leave out what fills them up, batches of about one size. Clients that are done stay as they are.

What a rule does once a job (`begin`, `end`) is done client by client: it may look at the client's data. Models that
cannot be mapped (a kernel that draws by itself, control flow on values) and rules that say so train one by one, which
is said once.

With several cores a stack is dealt out to as many threads: the operations of a step are large and do not hold the
interpreter. Who trains with whom depends on the jobs and on the number of cores alone, never on time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.client.chain import Chain
from offbeat.client.dropout import step_keys
from offbeat.client.gradient import overrides
from offbeat.client.kernel import ClosedForm, Kernel, Mapped
from offbeat.client.plan import Plan
from offbeat.client.randomness import generators, restore, seeded, states
from offbeat.client.training import Trainer
from offbeat.core.errors import ProtocolError
from offbeat.core.jobs import PLAIN, Job, Result, carry_of, column, handed_back, stacked_carry, stacked_job, stretch
from offbeat.core.protocol import LocalJob, LocalRule

log = logging.getLogger("offbeat")

MEMORY = 2**28  # bytes a stack may take, about
_VECTORS = 10  # of a client's model in a stack: base, start, w, its gradient, the optimizer's, the rule's
_COPIES = 16  # of a client's batch, by what a model makes of it

Batch = tuple[Tensor, Tensor | None]  # where its examples lie, and how each is shown
Group = tuple[Tensor | None, Tensor, Tensor, Tensor | None]  # rows, inputs, labels, sizes: see Kernel.gradient


class StackTrainer:
    """train(jobs) -> results, in order. Equal to the trainer's own, one by one, within rounding.

    `most` is how many jobs may be stacked: a number of this model and this training, not of this machine.
    """

    def __init__(self, trainer: Trainer, cores: int = 1, memory: int = MEMORY) -> None:
        self._trainer, self._cores = trainer, cores
        binding, data = trainer.binding, trainer.data
        self._chain = Chain.of(binding.module, binding.layout, trainer.task, data)
        values = _VECTORS * binding.layout.size + _COPIES * trainer.training.batch * data.width
        self.most = max(1, memory // (values * binding.vector.element_size()))
        self._modules = [binding.module]  # one for each thread
        self._sources = generators(binding.vector.device)
        self._pool: ThreadPoolExecutor | None = None
        self._said: set[str] = set()
        self._one_by_one = False  # once it is known that it has to be

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
        stacks = []
        for number, part in enumerate(_dealt([Planned(self._trainer, job) for job in jobs], self._cores)):
            if number == len(self._modules) and self._chain is None:
                self._modules.append(deepcopy(self._modules[0]))
            stacks.append(Stack(self._trainer, part, self._chain, self._modules[min(number, len(self._modules) - 1)]))
        with torch.enable_grad(), seeded(self._sources, 0):
            for stack in stacks:
                stack.begin()
            before = states(self._sources)
            self._together([stack.descend for stack in stacks])
            if not all(map(torch.equal, before, states(self._sources))):
                raise ProtocolError(
                    f"{jobs[0].work.rule!r} draws at every step: of a stack that is nobody's draw; let it say "
                    "stacks = False"
                )
            found = {result.ticket: result for stack in stacks for result in stack.results()}
        return [found[job.ticket] for job in jobs]

    def _together(self, tasks: list[Callable[[], None]]) -> None:
        """The first here, the others in threads; one thread each."""
        if len(tasks) > 1 and self._pool is None:
            one = torch.set_num_threads, (1,)
            self._pool = ThreadPoolExecutor(self._cores - 1, "stack", initializer=one[0], initargs=one[1])
        others = [self._pool.submit(task) for task in tasks[1:]] if self._pool is not None else []
        try:
            tasks[0]()
        finally:
            errors = [other.exception() for other in others]  # all of them have ended
        for error in errors:
            if error is not None:
                raise error


def _alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that can be stacked: one rule, the same number of phases, extras of the same names and shapes."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        extras = tuple((name, tuple(extra.shape)) for name, extra in sorted(job.work.extras.items()))
        slices = tuple(phase.slices for phase in (job.work.rule or PLAIN).phases(job.work))
        groups.setdefault((_named(job.work.rule), slices, extras), []).append(job)
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


def _dealt(jobs: list[Planned], cores: int) -> list[list[Planned]]:
    """As many parts as cores, none empty, with about as much to do: like cards, the longest first."""
    if cores == 1:
        return [jobs]
    ranked = sorted(jobs, key=lambda one: -one.plan.steps)
    return [ranked[first::cores] for first in range(min(cores, len(ranked)))]


class Stack:
    """One stack of jobs: `begin` and `results` are each job's own, one after the other, and may draw; between them
    `descend` is all of them at once, and draws nothing.
    """

    def __init__(self, trainer: Trainer, planned: list[Planned], chain: Chain | None, module: nn.Module) -> None:
        self._trainer, self._layout, self._planned = trainer, trainer.binding.layout, planned
        self._rule: LocalRule = planned[0].job.work.rule or PLAIN
        self._plans = [one.plan for one in planned]
        self._vectors = torch.stack([one.job.base for one in planned])
        self.w = self._layout.trainable(self._vectors)  # a view: params come first
        self._job = stacked_job([one.local for one in planned])
        self._noise = torch.tensor([plan.noise for plan in self._plans], device=self.w.device)
        self._sources = generators(self.w.device)
        self._draws = overrides(self._rule, "begin") or overrides(self._rule, "end")  # or may, at least
        self._carry: Any = None
        self._drawn: list[list[Tensor]] = []  # where each job's draws are after `begin`
        self.kernel: Kernel
        if chain is not None and not overrides(self._rule, "loss"):
            self.kernel, self._mapped = ClosedForm(chain), None
        else:
            self.kernel = self._mapped = Mapped(module, self._layout, trainer.task, self._rule, self._job)
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
                steps, optimizer = self._steps(number), self._trainer.training.fresh()
                _, self._carry = stretch(self._rule, self._job, phase, lr, self.w, steps, optimizer, self._carry)
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
        done = torch.tensor([sum(plan.counts[:phase]) for plan in self._plans], device=self.w.device)
        counts = [plan.counts[phase] for plan in self._plans]
        batches = [self._batches(plan, phase) for plan in self._plans]
        for step in range(max(counts)):
            rows = [i for i, count in enumerate(counts) if count > step]
            groups = self._groups({i: next(batches[i]) for i in rows})
            active = None
            if len(rows) < len(counts):
                active = torch.tensor([count > step for count in counts], device=self.w.device)[:, None]
            yield StackGradient(self, groups, step_keys(self._noise, done + step)), active

    def _batches(self, plan: Plan, phase: int) -> Iterator[Batch]:
        for positions, sizes, moves in plan.epochs(phase):
            shown = (None,) * len(sizes) if moves is None else torch.split(moves, sizes)
            places = self._trainer.data.places(plan.job.client, positions)
            yield from zip(torch.split(places, sizes), shown, strict=True)

    def _groups(self, chosen: Mapping[int, Batch]) -> list[Group]:
        """Batches of one size each, or of about one size."""
        by_size: dict[int, list[int]] = {}
        for i, (places, _) in chosen.items():
            size = len(places)
            by_size.setdefault((size - 1).bit_length() if self.kernel.pads else size, []).append(i)
        return [self._gathered(rows, [chosen[i] for i in rows]) for rows in by_size.values()]

    def _gathered(self, rows: list[int], batches: list[Batch]) -> Group:
        device, own = self.w.device, [len(places) for places, _ in batches]
        size = max(own)
        sizes = None if min(own) == size else torch.tensor(own, device=device)
        if sizes is not None:  # filled up with examples of the same batch: they can spoil nothing that is sound
            batches = [_filled(batch, size) for batch in batches]
        x, y = self._trainer.data.gather([self._plans[i].job.client for i in rows], [places for places, _ in batches])
        augment, moves = self._plans[rows[0]].augment, [shown for _, shown in batches if shown is not None]
        if augment is not None and moves:
            x = augment(x, torch.cat(moves))
        index = None if len(rows) == len(self._plans) else torch.tensor(rows, device=device)
        return index, x.view(len(rows), size, *x.shape[1:]), y.view(len(rows), size, *y.shape[1:]), sizes


def _filled(batch: Batch, size: int) -> Batch:
    places, shown = batch
    more = size - len(places)
    again = None if shown is None else torch.cat([shown, shown[:1].expand(more, *shown.shape[1:])])
    return torch.cat([places, places[:1].expand(more)]), again


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
        for rows, x, y, sizes in self._groups:
            grad = kernel.gradient(points, rows, x, y, sizes, self._keys, moves)
            if rows is None:
                return grad
            out = torch.zeros_like(points) if out is None else out
            out.index_copy_(0, rows, grad)
        assert out is not None
        return out
