"""Many jobs in one tensor program: what is due, and with it whatever else has been sent, as far as a stack may go.

With several hands what waits is cut into as many stacks, the most urgent jobs in the first; the run goes on as soon as
that one is there. Until then jobs are left waiting: handed out as they come, a few at a time, they make small stacks,
and everybody waits for somebody in turn.

Which jobs are stacked, and in which order, follows from what waits and what is asked for: from the events of the run,
never from host time. So the same run gives the same bits again, also one that was stopped and hands out anew what
waited. Each job is within rounding of what `inline` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import Any, Protocol

from offbeat.core.errors import in_words
from offbeat.core.jobs import Failure, Job, Result
from offbeat.engine.worker import Answer
from offbeat.workers.inline import Inline, computed
from offbeat.workers.job_blocks import Block


class Stacked(Protocol):
    """Trains many jobs together (`client.stack.StackTrainer`)."""

    @property
    def most(self) -> int:
        """How many at once."""
        ...

    def attempt(self, jobs: Sequence[Job]) -> Sequence[Result | Exception]:
        """A result for each, in order, or what went wrong with it."""
        ...

    def close(self) -> None: ...


class Blocks(Protocol):
    """A worker for whole blocks: an answer is a list of answers."""

    def submit(self, job: Any, due: float) -> None: ...

    def cancel(self, ticket: int) -> None: ...

    def collect(self, tickets: Collection[int]) -> Sequence[Any]: ...

    def close(self) -> None: ...


class Batched:
    """`through` makes what trains the stacks of other hands than this process, where there are any."""

    def __init__(
        self, stacked: Stacked, hands: int = 1, through: Callable[[Callable[[Any], Any]], Blocks] = Inline
    ) -> None:
        self._stacked, self._hands = stacked, hands
        self._jobs: dict[int, Job] = {}  # that are in no block yet
        self._new: list[tuple[float, int]] = []  # (due, ticket) of those that came since the last block was cut
        self._dues: list[tuple[float, int]] = []  # a heap of the others; some of them are gone already
        self._blocks = through(self._trained)
        self._block_of: dict[int, int] = {}  # ticket -> number of its block, of those that were handed out
        self._in: dict[int, set[int]] = {}  # number of a block -> its tickets that somebody waits for
        self._next = 0  # number of a block
        self._done: dict[int, Any] = {}  # what a block that was trained here has for an answer

    def submit(self, job: Job, due: float) -> None:
        self._jobs[job.ticket] = job
        self._new.append((due, job.ticket))

    def cancel(self, ticket: int) -> None:
        self._jobs.pop(ticket, None)
        number = self._block_of.pop(ticket, None)
        if number is not None:
            self._in[number].discard(ticket)
            if not self._in[number]:
                del self._in[number]
                self._done.pop(number, None)
                self._blocks.cancel(number)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        found: list[Answer] = []
        # with one hand nobody's job is in a block when it is asked for
        asked = tickets if self._hands == 1 else [ticket for ticket in tickets if ticket in self._jobs]
        blocks = self._cut(asked) if asked else []
        if self._hands == 1:
            for _, block in blocks:
                found += _each([job.ticket for job in block.jobs], computed(self._trained, block))
            return found
        for due, block in blocks:
            self._hand_out(block, due)
        for number in dict.fromkeys(self._block_of[ticket] for ticket in tickets):
            found += self._answers(number)
        return found

    def close(self) -> None:
        for held in (self._jobs, self._new, self._dues, self._block_of, self._in, self._done):
            held.clear()
        self._next = 0
        self._blocks.close()
        self._stacked.close()

    def _cut(self, asked: Collection[int]) -> list[tuple[float, Block]]:
        """Into blocks: these, and what is due next, as many as there are hands for; and when each is due."""
        jobs, room = [self._jobs.pop(ticket) for ticket in asked], self._hands * self._stacked.most
        if self._hands == 1 and len(jobs) + len(self._jobs) <= room:  # all there are, at once, in no need of a due time
            jobs += [self._jobs[ticket] for ticket in sorted(self._jobs)]
            for held in (self._jobs, self._new, self._dues):
                held.clear()
        dues = [-1.0] * len(jobs)
        for entry in self._new:
            heappush(self._dues, entry)
        self._new.clear()
        while self._dues and (len(jobs) < room or self._dues[0][1] not in self._jobs):
            due, ticket = heappop(self._dues)
            if (job := self._jobs.pop(ticket, None)) is not None:
                jobs.append(job)
                dues.append(due)
        size = min(self._stacked.most, ceil(len(jobs) / self._hands))
        first, self._next = self._next, self._next + ceil(len(jobs) / size)
        starts = enumerate(range(0, len(jobs), size), first)
        return [(dues[at], Block(number, tuple(jobs[at : at + size]))) for number, at in starts]

    def _hand_out(self, block: Block, due: float) -> None:
        self._in[block.ticket] = {job.ticket for job in block.jobs}
        self._block_of |= dict.fromkeys(self._in[block.ticket], block.ticket)
        if block.ticket == 0:  # here, so that what is found out once is found out and said once
            self._done[block.ticket] = computed(self._trained, block)
        else:
            self._blocks.submit(block, due)

    def _answers(self, number: int) -> list[Answer]:
        answers = self._done.pop(number) if number in self._done else self._blocks.collect((number,))[0]
        wanted = self._in.pop(number)
        for ticket in wanted:
            del self._block_of[ticket]
        return [answer for answer in _each(sorted(wanted), answers) if answer.ticket in wanted]

    def _trained(self, block: Block) -> list[Answer]:
        return [
            Failure(job.ticket, in_words(answer)) if isinstance(answer, Exception) else answer
            for job, answer in zip(block.jobs, self._stacked.attempt(block.jobs), strict=True)
        ]


def _each(tickets: Sequence[int], answers: list[Answer] | Failure) -> list[Answer]:
    """A block's answers, or that all of it failed."""
    return [Failure(ticket, answers.reason) for ticket in tickets] if isinstance(answers, Failure) else answers
