"""The queue behind the workers `processes` and `ray`, with scripted members that train, answer otherwise or die."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from small_world import add_one
from test_processes import collect_all, job

from offbeat.core.errors import RunError
from offbeat.testing import identical
from offbeat.workers.inline import Inline
from offbeat.workers.job_queue import JOBS_PER_MEMBER, JobQueue, MemberLost
from offbeat.workers.process_pool import ANSWER, NO_MEMORY, UNSENDABLE
from offbeat.workers.shared_memory_codec import Unsendable
from workers import messages


@dataclass(eq=False)
class Member:
    jobs: deque[tuple[Any, int, float]] = field(default_factory=deque)


class ScriptedQueue(JobQueue[Member]):
    """A queue whose members follow a script.

    kinds: ticket -> kind of its answer; deaths: ticket -> how many members die while they train it; lost: tickets sent
    to a member that has just died; unsendable: tickets that cannot be sent.
    """

    name, destination, death_causes = "scripted", "a member", "the script says so"

    def __init__(self, members: int = 2, kinds: Any = (), deaths: Any = (), lost: Any = (), unsendable: Any = ()):
        super().__init__(add_one)
        self.count, self.kinds, self.deaths = members, dict(kinds), dict(deaths)
        self.lost, self.unsendable = set(lost), unsendable
        self.trained: list[int] = []

    def _start(self) -> None:
        self._started = True
        self._members += [Member() for _ in range(self.count)]
        self._limit_results_ahead(self.count, model_bytes=1 << 40)

    def _end_members(self) -> None:
        self._members.clear()

    def _free_member(self, ticket: int) -> Member | None:
        return next((member for member in self._members if len(member.jobs) < JOBS_PER_MEMBER), None)

    def _send(self, member: Member, job: Any, due: float) -> bool:
        if job.ticket in self.unsendable:
            raise Unsendable("it is too strange")
        if job.ticket in self.lost:
            self.lost.discard(job.ticket)
            self._replace(member)
            raise MemberLost
        member.jobs.append((job, job.ticket, due))
        return True

    def _receive_answers(self, timeout: float | None = None) -> None:
        for member in self._members if timeout is None else ():
            if not member.jobs:
                continue
            sent, ticket, _ = member.jobs[0]
            if self.deaths.get(ticket, 0) > 0:
                self.deaths[ticket] -= 1
                self._replace(member)
                return
            member.jobs.popleft()
            self.trained.append(ticket)
            self._store_answer(ticket, self.kinds.get(ticket, ANSWER), b"a reason", lambda sent=sent: add_one(sent))

    def _replace(self, member: Member) -> None:
        self._members[self._members.index(member)] = Member()
        self._requeue(member, "fell over")


def test_answers_equal_inline_despite_deaths_and_jobs_that_cannot_be_sent(caplog):
    """Job 0 ends a member, 1 is sent to a dead one, 2 cannot be sent, and the answer to 3 cannot be sent back."""
    worker = ScriptedQueue(deaths={0: 1}, lost={1}, unsendable={2}, kinds={3: UNSENDABLE})
    jobs = [job(ticket) for ticket in range(12)]
    assert identical(collect_all(worker, jobs), collect_all(Inline(add_one), jobs))
    assert sorted(worker.trained) == [0, 1, *range(3, 12)]
    [message] = caplog.messages
    assert message.startswith(messages.UNSENDABLE_TO_MEMBER)


def test_the_most_urgent_job_goes_first_and_waiting_results_are_limited():
    worker = ScriptedQueue(members=1)
    for ticket, due in enumerate((5.0, 3.0, 1.0, 2.0, 4.0, 6.0, 7.0, 8.0, 9.0)):
        worker.submit(job(ticket), due)
    worker.collect((0,))  # needed now, before its due time
    for ticket in (2, 3, 1, 4, 5, 6, 7, 8):
        worker.collect((ticket,))
        waiting = len(worker._answers) + sum(len(member.jobs) for member in worker._members)
        assert waiting <= 2 * JOBS_PER_MEMBER  # large results: only as many as keep one member busy
    assert worker.trained == [0, 2, 3, 1, 4, 5, 6, 7, 8]


def test_a_job_that_ends_three_members_ends_the_run_and_waiting_jobs_are_not_blamed():
    worker = ScriptedQueue(members=1, deaths={0: 9})
    worker.submit(job(0), 0.0)
    worker.submit(job(1), 1.0)
    with pytest.raises(RunError, match=messages.DEATH_OF_MEMBER):
        worker.collect((0,))
    assert worker._deaths == {0: 3, 1: 0}


def test_lack_of_memory_in_a_member_is_raised():
    worker = ScriptedQueue(kinds={0: NO_MEMORY})
    worker.submit(job(0), 0.0)
    with pytest.raises(MemoryError, match="a reason"):
        worker.collect((0,))


def test_cancelled_jobs_are_dropped_and_a_closed_queue_can_be_used_again():
    worker = ScriptedQueue(members=1)
    for ticket in range(4):
        worker.submit(job(ticket), float(ticket))
    worker.collect((0,))
    worker.cancel(1)
    assert worker.collect((2,))[0].ticket == 2
    with pytest.raises(KeyError):
        worker.collect((1,))
    worker.close()
    assert not worker._jobs
    assert identical(collect_all(worker, [job(7)]), collect_all(Inline(add_one), [job(7)]))
