"""The worker `processes`: forked processes on this machine, with the same results as `inline`.

Processes are forked when the first result is needed, up to one per core, each with one thread. They inherit the trainer
and the data. Jobs are started ahead of their due time, in its order. A process that dies is replaced and its job
repeated, which is safe because jobs are pure. Tensors travel through memory that both sides share.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from offbeat.core.errors import describe_error, to_single_line
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalRule
from offbeat.workers import process_pool
from offbeat.workers.inline import JobBlock, Train, train_or_fail
from offbeat.workers.job_queue import JOBS_PER_MEMBER, JobQueue, MemberLost, job_fields, job_from_fields, usable_cores
from offbeat.workers.process_pool import ChildProcess, Message, ProcessPool
from offbeat.workers.shared_memory_codec import SharedMemory, Unsendable, pack, unpack

log = logging.getLogger("offbeat")

PIPE_BYTES = 1 << 14  # a message of this size can be sent before the receiver reads it
MODELS_IN_SHARED_MEMORY = (8, 2, 0)  # for a job, and for its answer; the first size that can be allocated

Slot = tuple[SharedMemory, SharedMemory]  # for a job, and for its answer


class JobProcess(ChildProcess):
    """A process that trains jobs, as its parent sees it; each job that is sent occupies a slot of shared memory."""

    def __init__(self, slots: list[Slot], pid: int, pipe: Connection) -> None:
        super().__init__(pid, pipe)
        self.slots = slots
        self.free_slots = list(range(len(slots)))
        self.jobs: deque[tuple[int, int, float]] = deque()  # (slot, ticket, due), in the order they were sent

    def send_job(self, job: Job | JobBlock, due: float, inherited: dict[int, int]) -> bool:
        """Send a job, unless the process is busy and the job is too large for the pipe: both sides would wait forever.

        inherited: id of an object that the process has already -> number of the object
        """
        slot = self.free_slots[-1]
        message = pack(job_fields(job), self.slots[slot][0], inherited, exact=True)
        if self.jobs and message.size > PIPE_BYTES:
            return False
        process_pool.send(self.pipe, Message(slot, job.ticket, message.body, message.tensors))
        self.free_slots.pop()
        self.jobs.append((slot, job.ticket, due))
        return True


class Processes(JobQueue[JobProcess]):
    """Train jobs, or blocks of up to `max_jobs` jobs, in `count` processes.

    With `helps`, this process also trains while it waits, first the job it waits for, and each other process has one
    block at a time, so that work remains for this one. Then timing decides who trains a job, but not its result.
    """

    name, destination = "processes", "another process"
    death_causes = "there is too little memory, or native code fails"

    def __init__(self, train: Train, count: int | None = None, max_jobs: int = 1, helps: bool = False) -> None:
        super().__init__(train)
        self._count, self._max_jobs, self._helps = count or usable_cores(), max_jobs, helps
        self._limit = self._count  # less if the system cannot start more processes
        self._pool = ProcessPool[JobProcess](kill=True)
        self._members = self._pool.processes
        self._model_bytes = 0  # of the models of a block
        self._rules: list[LocalRule] = []  # inherited by processes, so they need not be sent
        self._rule_numbers: dict[int, int] = {}

    def close(self) -> None:
        """End all processes and drop all jobs."""
        super().close()
        self._limit = self._count

    # ------------------------------------------------------------ jobs

    def _wait_for_answer(self, ticket: int) -> None:
        """Wait until a job is answered; with `helps`, train it here unless it was sent."""
        if self._helps and ticket in self._unsent:
            del self._unsent[ticket]
            self._send_jobs()
            self._train_here(ticket)
        super()._wait_for_answer(ticket)

    def _wait_for_any_answer(self) -> None:
        """Wait until an answer has arrived; with `helps`, train the most urgent job instead of waiting."""
        if self._helps and (other := self._most_urgent_job()) is not None:
            self._train_here(other[1])
            self._receive_answers(timeout=0.0)
        else:
            self._receive_answers()

    def _send(self, member: JobProcess, job: Job | JobBlock, due: float) -> bool:
        """Send a job; replace the process if it died."""
        try:
            return member.send_job(job, due, self._rule_numbers)
        except process_pool.CLOSED:
            self._replace_member(member)
            raise MemberLost from None

    def _free_member(self, ticket: int) -> JobProcess | None:
        """Return the least busy process if it has a free slot; with `helps`, only if it has no job."""
        member = self._least_busy()
        return None if member is None or not member.free_slots or (self._helps and member.jobs) else member

    # ------------------------------------------------------------ processes

    def _start(self) -> None:
        """Prepare what the processes inherit: the rules of the first jobs, and memory for their models."""
        self._started = True
        jobs = self._submitted_jobs()
        rules = {id(rule): rule for job in jobs if (rule := job.work.rule) is not None}
        self._rules = list(rules.values())
        self._rule_numbers = {id(rule): number for number, rule in enumerate(self._rules)}
        self._model_bytes = self._max_jobs * max((job.base.nbytes for job in jobs), default=0)
        self._limit_results_ahead(self._count, self._model_bytes)

    def _least_busy(self) -> JobProcess | None:
        """Return the least busy process, or a new one if all are busy and the limit allows it."""
        member = min(self._members, key=lambda member: len(member.jobs), default=None)
        if (member is not None and not member.jobs) or len(self._members) >= self._limit:
            return member
        size = self._model_bytes
        slots = [(_allocate_memory(size), _allocate_memory(size)) for _ in range(JOBS_PER_MEMBER)]
        try:
            return self._pool.fork(partial(_serve_jobs, self._train, slots, self._rules), partial(JobProcess, slots))
        except OSError as error:
            self._limit, self._inline_only = len(self._members), not self._members
            problem = "no process could be started" if self._inline_only else f"only {self._limit} could be started"
            log.warning("worker processes: %s (%s)", problem, error.strerror or error)
            return member

    def _replace_member(self, member: JobProcess) -> None:
        """Remove a process that died and enqueue its jobs; a new process is forked when it is needed."""
        with suppress(*process_pool.CLOSED):
            while member.pipe.poll():
                self._handle_message(member, process_pool.receive(member.pipe))
        if self._inline_only:
            return
        description = self._pool.remove(member)
        self._requeue(member, description)
        log.warning("a worker process %s; it is replaced, and its job is repeated", description)

    def _receive_answers(self, timeout: float | None = None) -> None:
        """Store the answers that have arrived, and replace processes that died; without a timeout, wait for one."""
        for member in self._pool.wait(timeout):
            if member.pipe.closed:
                continue  # removed while another message was handled
            try:
                self._handle_message(member, process_pool.receive(member.pipe))
            except process_pool.CLOSED:
                self._replace_member(member)

    def _handle_message(self, member: JobProcess, message: Message) -> None:
        """Store an answer; if forks cannot train, train in this process from now on."""
        if message.kind == process_pool.UNFIT:
            reason = to_single_line(process_pool.decode_text(message.body))
            log.warning("worker processes: forks cannot train here (%s): inline is used", reason)
            self._inline_only = True
            self._end_members()
            return
        slot, _, _ = member.jobs.popleft()
        body, memory = message.body, member.slots[slot][1]
        self._store_answer(message.number, message.kind, body, lambda: unpack(body, message.tensors, memory))
        member.free_slots.append(slot)

    def _end_members(self) -> None:
        """End all processes."""
        self._pool.end()


def _allocate_memory(model_bytes: int) -> SharedMemory:
    """Allocate shared memory for several models of this size, or for fewer if there is too little memory."""
    for models in MODELS_IN_SHARED_MEMORY:
        with suppress(OSError, ValueError, OverflowError):
            return SharedMemory(models * model_bytes + (PIPE_BYTES if models else 0))
    return SharedMemory(0)  # tensors are sent through the pipe


# ------------------------------------------------------------ in a worker process


def _serve_jobs(train: Train, slots: Sequence[Slot], rules: Sequence[LocalRule], pipe: Connection) -> None:
    """Train the jobs that arrive on the pipe, one after the other."""
    while True:
        job = process_pool.receive(pipe)
        process_pool.send(pipe, _train_message(train, job, slots[job.kind], rules))
        process_pool.flush_streams()


def _train_message(train: Train, job: Message, slot: Slot, rules: Sequence[LocalRule]) -> Message:
    """Train the job in a message and return the answer; `slot` is the shared memory for both."""
    try:
        work = job_from_fields(unpack(job.body, job.tensors, slot[0], rules, copy=False))
        answer = pack(train_or_fail(train, work), slot[1])
    except MemoryError as error:
        return Message(process_pool.NO_MEMORY, job.number, str(error).encode())
    except Unsendable as reason:
        return Message(process_pool.UNSENDABLE, job.number, str(reason).encode())
    except Exception as error:  # the job cannot be decoded, for example because a class was defined after the fork
        return Message(process_pool.UNSENDABLE, job.number, describe_error(error).encode())
    return Message(process_pool.ANSWER, job.number, answer.body, answer.tensors)
