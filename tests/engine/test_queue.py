"""The queue behind the workers `processes` and `ray`, with members of a script: they train when they are listened to,
and die when they are told to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from small_world import add_one
from test_processes import answers, job

from offbeat.core.errors import RunError
from offbeat.testing import identical
from offbeat.workers.forked_process import ANSWER, NO_MEMORY, STAYS
from offbeat.workers.inline import Inline
from offbeat.workers.job_queue import DEPTH, Lost, Queue
from offbeat.workers.shared_memory_codec import Unsendable


@dataclass(eq=False)
class Hand:
    jobs: deque[tuple[Any, int, float]] = field(default_factory=deque)


class Scripted(Queue[Hand]):
    """`says`: what is said of a ticket instead of an answer; `dies`: how often whoever has it dies of it; `lost`: to be
    sent to somebody who has just died; `heavy`: never to be sent.
    """

    name, there, causes = "scripted", "a hand", "the script says so"

    def __init__(self, hands: int = 2, says: Any = (), dies: Any = (), lost: Any = (), heavy: Any = ()) -> None:
        super().__init__(add_one)
        self.hands, self.says, self.dies, self.lost, self.heavy = hands, dict(says), dict(dies), set(lost), heavy
        self.trained: list[int] = []

    def _start(self) -> None:
        self._started = True
        self._members += [Hand() for _ in range(self.hands)]
        self._keep(self.hands, model=1 << 40)

    def _end_all(self) -> None:
        self._members.clear()

    def _free_for(self, ticket: int) -> Hand | None:
        return next((hand for hand in self._members if len(hand.jobs) < DEPTH), None)

    def _send(self, member: Hand, job: Any, due: float) -> bool:
        if job.ticket in self.heavy:
            raise Unsendable("it is heavy")
        if job.ticket in self.lost:
            self.lost.discard(job.ticket)
            self._bury(member)
            raise Lost
        member.jobs.append((job, job.ticket, due))
        return True

    def _hear(self, timeout: float | None = None) -> None:
        for hand in self._members if timeout is None else ():
            if not hand.jobs:
                continue
            given, ticket, _ = hand.jobs[0]
            if self.dies.get(ticket, 0) > 0:
                self.dies[ticket] -= 1
                self._bury(hand)
                return
            hand.jobs.popleft()
            self.trained.append(ticket)
            self._book(ticket, self.says.get(ticket, ANSWER), b"for a reason", lambda given=given: add_one(given))

    def _bury(self, hand: Hand) -> None:
        self._members[self._members.index(hand)] = Hand()
        self._again(hand, "fell over")


def test_answers_are_those_of_inline_whoever_dies_or_is_lost_and_whatever_cannot_travel(caplog):
    """The first job ends whoever has it; the second is sent to somebody who has just died; the third is trained here,
    as is the fourth, of which that turns out there.
    """
    worker = Scripted(dies={0: 1}, lost={1}, heavy={2}, says={3: STAYS})
    jobs = [job(ticket) for ticket in range(12)]
    assert identical(answers(worker, jobs), answers(Inline(add_one), jobs))
    assert sorted(worker.trained) == [0, 1, *range(3, 12)]
    assert caplog.messages == ["worker scripted: a job cannot be sent to a hand (it is heavy): trained in this one"]


def test_the_most_urgent_goes_first_and_no_more_than_may_wait():
    worker = Scripted(hands=1)
    for ticket, due in enumerate((5.0, 3.0, 1.0, 2.0, 4.0, 6.0, 7.0, 8.0, 9.0)):
        worker.submit(job(ticket), due)
    worker.collect((0,))  # needed now, whenever it was to be
    for ticket in (2, 3, 1, 4, 5, 6, 7, 8):
        worker.collect((ticket,))
        waiting = len(worker._answers) + sum(len(hand.jobs) for hand in worker._members)
        assert waiting <= 2 * DEPTH  # of results so large that no more are kept than keep one hand busy
    assert worker.trained == [0, 2, 3, 1, 4, 5, 6, 7, 8]


def test_a_job_that_ends_three_hands_ends_the_run_and_those_behind_it_are_not_blamed():
    worker = Scripted(hands=1, dies={0: 9})
    worker.submit(job(0), 0.0)
    worker.submit(job(1), 1.0)
    words = "job 0 of client 0 ended 3 processes, the last one fell over: the script says so; with --worker inline"
    with pytest.raises(RunError, match=words):
        worker.collect((0,))
    assert worker._deaths == {0: 3, 1: 0}


def test_want_of_memory_there_is_want_of_memory_here():
    worker = Scripted(says={0: NO_MEMORY})
    worker.submit(job(0), 0.0)
    with pytest.raises(MemoryError, match="for a reason"):
        worker.collect((0,))


def test_what_was_cancelled_is_forgotten_and_what_is_closed_begins_anew():
    worker = Scripted(hands=1)
    for ticket in range(4):
        worker.submit(job(ticket), float(ticket))
    worker.collect((0,))
    worker.cancel(1)
    assert worker.collect((2,))[0].ticket == 2
    with pytest.raises(KeyError):
        worker.collect((1,))
    worker.close()
    assert not worker._jobs
    assert identical(answers(worker, [job(7)]), answers(Inline(add_one), [job(7)]))
