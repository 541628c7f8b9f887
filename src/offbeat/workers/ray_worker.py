"""The worker `ray`: actors on a Ray cluster, with the same results as `inline` on equal machines.

Actors are started when the first result is needed, as many as there are jobs, up to one per CPU of the cluster. The
trainer with its data, and every model, is put into the object store once, and each node fetches it once. Jobs are
started ahead of their due time, in its order. An actor that dies or whose node dies is replaced and its jobs are
repeated, which is safe because jobs are pure.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayError
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from offbeat.core.errors import RunError, to_single_line
from offbeat.core.jobs import Job
from offbeat.training import tensor_version
from offbeat.workers.inline import JobBlock, Train
from offbeat.workers.job_queue import JOBS_PER_MEMBER, MAX_DEATHS, JobQueue, job_fields, usable_cores
from offbeat.workers.process_pool import ANSWER, NO_MEMORY, UNSENDABLE, decode_text, replaced_handlers
from offbeat.workers.ray_actor import ActorReport, NumericEnvironment, TorchSettings, TrainingActor
from offbeat.workers.ray_codec import TensorBytes, pack, pack_trainer, tensor_bytes, unpack
from offbeat.workers.shared_memory_codec import Unsendable

log = logging.getLogger("offbeat")

MAX_ACTORS = 1024
BUSY_WARNING_SECONDS = 60.0  # without any actor, until a warning that the cluster has no free CPU
STATUS_TIMEOUT = 30.0  # seconds for a server to prove that it is Ray
LOG_OPTIONS = {"log_to_driver": False, "logging_level": logging.ERROR}
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # no statistics or GPU advice
RayObject = Any  # classes of Ray are generic for type checkers only


@dataclass(eq=False)
class RayMember:
    """An actor as the run sees it."""

    actor: RayObject
    report: RayObject | None  # pending until it has loaded the trainer, then None
    jobs: deque[tuple[RayObject, int, float]] = field(default_factory=deque)  # (answer, ticket, due), in the order sent
    node: str = "?"
    pid: int = 0  # on its node
    tries: int = 1  # actors started in this place before one has loaded the trainer


class RayWorker(JobQueue[RayMember]):
    """Train jobs on a Ray cluster.

    `constant_tensors` are tensors of the trainer that are never modified. `note` is called once if nodes differ from
    this machine.
    """

    name, destination = "ray", "the cluster"
    death_causes = "there is too little memory, native code fails, or nodes are lost"

    def __init__(self, train: Train, address: str | None = None, constant_tensors: Collection[Tensor] = ()) -> None:
        super().__init__(train)
        self._address, self._constant_tensors = address, constant_tensors
        self.note: Callable[[str], object] = lambda text: None
        self._stored: Any = WeakTensorKeyDictionary()  # tensor -> (its version, its reference in the object store)
        self._max_members = 0
        self._trainer: RayObject | None = None
        self._actor_class: RayObject = None
        self._disconnect: Callable[[], object] | None = None  # None: not connected

    # ------------------------------------------------------------ jobs

    def _send_jobs(self, needed: int | None = None) -> None:
        """Start an actor for each job, up to the limit, and send jobs to those that are ready."""
        while len(self._members) < min(self._max_members, len(self._jobs)):
            self._members.append(self._start_actor())
        super()._send_jobs(needed)

    def _free_member(self, ticket: int) -> RayMember | None:
        """Return the least busy actor.

        A job of an actor that died is sent to an idle actor: answers in transit are lost with an actor, so only a job
        that is alone there is certain to be the cause of its death.
        """
        limit = 1 if ticket in self._deaths else JOBS_PER_MEMBER
        ready = (member for member in self._members if member.report is None and len(member.jobs) < limit)
        free = (member for member in ready if not any(other in self._deaths for _, other, _ in member.jobs))
        return min(free, key=lambda member: len(member.jobs), default=None)

    def _send(self, member: RayMember, job: Job | JobBlock, due: float) -> bool:
        """Send a job; its large tensors travel through the object store."""
        body, large = pack(job_fields(job), exact=True)
        try:
            answer = member.actor.train.remote(body, *map(self._store_tensor, large))
        except RayError as error:
            raise RunError(f"worker ray: the cluster takes no more jobs ({_first_line(error)})") from None
        member.jobs.append((answer, job.ticket, due))
        return True

    def _store_tensor(self, tensor: Tensor) -> RayObject:
        """Put a tensor into the object store, once for all jobs with the same model."""
        version, ref = self._stored.get(tensor, (None, None))
        if version != tensor_version(tensor):
            ref = ray.put(tensor_bytes(tensor))
            self._stored[tensor] = tensor_version(tensor), ref
        return ref

    # ------------------------------------------------------------ actors

    def _start(self) -> None:
        """Connect to the cluster and put the trainer into the object store."""
        disconnect = connect(self._address, usable_cores())
        self._disconnect = weakref.finalize(self, _end_actors, self._members, disconnect, os.getpid())
        self._started = True
        self._max_members = min(MAX_ACTORS, int(ray.cluster_resources().get("CPU", 0)))
        if self._max_members < 1:
            raise RunError("worker ray: the cluster has no CPU to train on")
        self._actor_class = ray.remote(num_cpus=1, max_restarts=0)(TrainingActor)
        try:
            self._trainer = ray.put(pack_trainer(self._train, self._constant_tensors))
        except Unsendable as reason:
            problem = f"model, data or loss cannot be sent to other processes ({to_single_line(reason)})"
            raise RunError(f"worker ray: {problem}; --worker processes does not send them") from None
        except RayError as error:
            raise RunError(f"worker ray: the object store has no space for the data ({_first_line(error)})") from None
        model_bytes = max((job.base.nbytes for job in self._submitted_jobs()), default=0)
        self._limit_results_ahead(self._max_members, model_bytes)

    def _end_members(self) -> None:
        """End all actors and disconnect from the cluster."""
        if self._disconnect is not None:
            self._disconnect()
        self._disconnect = self._trainer = None
        self._stored.clear()

    def _start_actor(self) -> RayMember:
        """Start an actor on any node with a free CPU, as soon as there is one."""
        actor = self._actor_class.remote()
        return RayMember(actor, actor.load.remote(TorchSettings.current(), self._trainer))

    def _receive_answers(self, timeout: float | None = None) -> None:
        """Handle the reports and answers that have arrived; without a timeout, wait for one."""
        pending = (member for member in self._members if member.report is not None or member.jobs)
        waiting = {member.report or member.jobs[0][0]: member for member in pending}
        if not waiting:
            return
        for ref in self._wait_ready(list(waiting), timeout):
            member = waiting[ref]
            try:
                answer = ray.get(ref)
            except RayError as error:
                self._replace_member(member, _describe_end(error))
                continue
            if member.report is not None:
                self._accept_report(member, answer)
            else:
                self._handle_answer(member, *answer)

    def _wait_ready(self, refs: list[RayObject], timeout: float | None) -> list[RayObject]:
        """Return the references that are available within the timeout; without a timeout, wait for one."""
        try:
            while True:
                limit, count = (BUSY_WARNING_SECONDS, 1) if timeout is None else (timeout, len(refs))
                ready, _ = ray.wait(refs, num_returns=count, timeout=limit)
                if ready or timeout is not None:
                    return list(ready)
                if all(member.report is not None for member in self._members):
                    self._warn_once("worker ray: no CPU of the cluster has been free for a minute: waiting for one")
        except RayError as error:
            raise RunError(f"worker ray: the cluster is lost ({_first_line(error)})") from None

    def _accept_report(self, member: RayMember, report: ActorReport) -> None:
        """Use an actor that has loaded the trainer, or remove one that could not."""
        if report.environment is None:
            self._remove_member(member, f"{report.unfit}, on node {report.node}")
            return
        member.report, member.node, member.pid = None, report.node, report.pid
        difference = NumericEnvironment.current().difference(report.environment)
        if difference is not None and "node differs" not in self._warned:
            self._warned.add("node differs")
            note = to_single_line(f"node {report.node} has {difference}: bits may differ from inline's")
            log.warning("worker ray: %s", note)
            self.note(note)

    def _handle_answer(self, member: RayMember, kind: int, body: bytes, blocks: list[TensorBytes]) -> None:
        """Store the answer to the first job of an actor."""
        _, ticket, _ = member.jobs.popleft()
        if ticket in self._jobs and kind not in (ANSWER, UNSENDABLE, NO_MEMORY):
            raise RunError(f"worker ray: an actor cannot train: {to_single_line(decode_text(body))}")
        self._store_answer(ticket, kind, body, lambda: unpack(body, blocks))

    def _replace_member(self, member: RayMember, description: str) -> None:
        """Replace an actor that died and enqueue its jobs."""
        if member.report is not None and member.tries >= MAX_DEATHS:
            self._remove_member(member, description)
            return
        with suppress(RayError):
            ray.kill(member.actor)
        self._requeue(member, description)
        replacement = self._start_actor()
        replacement.tries = 1 if member.report is None else member.tries + 1
        self._members[self._members.index(member)] = replacement
        log.warning("a worker process on node %s %s; it is replaced, and its job is repeated", member.node, description)

    def _remove_member(self, member: RayMember, reason: str) -> None:
        """Remove an actor that cannot train; raises an error if it was the last one."""
        with suppress(RayError):
            ray.kill(member.actor)
        self._members.remove(member)
        self._max_members -= 1
        self._warn_once(f"worker ray: a node cannot train ({to_single_line(reason)}): it is left out")
        if not self._members and self._max_members < 1:
            needs = "every node needs offbeat, this torch and what the model imports"
            raise RunError(
                f"worker ray: no node of the cluster can train, the last one: {to_single_line(reason)}; {needs}"
            )


def _end_actors(members: list[RayMember], disconnect: Callable[[], None], owner: int) -> None:
    """Kill all actors and disconnect, except in a fork of their owner."""
    while members and os.getpid() == owner:
        with suppress(Exception):
            ray.kill(members.pop().actor)
    disconnect()


def _describe_end(error: RayError) -> str:
    """Describe how an actor ended."""
    if isinstance(error, OutOfMemoryError):
        return "was ended for lack of memory"
    if isinstance(error, ActorUnavailableError):  # the first error if a node is lost
        return "is unreachable"
    text = str(error)
    if "node has died" in text or "node was terminated" in text or "node failure" in text:
        return "was lost with its node"
    return "died" if "worker process has died" in text else f"died ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    """Return the first line of an error message that is not empty."""
    return to_single_line(next((line.strip() for line in str(error).splitlines() if line.strip()), ""), 200)


# ------------------------------------------------------------ the connection to a cluster


def connect(address: str | None, cpus: int) -> Callable[[], None]:
    """Connect to a cluster, or start one; returns a function that disconnects and ends a cluster started here."""
    os.environ.update(ENVIRONMENT)
    if ray.is_initialized():  # use the connection of the script, which also ends it
        current = ray.get_runtime_context().gcs_address
        if address is not None and current != address:
            hint = "call ray.shutdown() first"
            raise RunError(f"worker ray: this Python is connected to {current}, not {address}: {hint}")
        return lambda: None
    if address is not None:
        _check_address(address)
    options: dict[str, object] = (
        {"address": address} if address else {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    )
    try:
        # Ray replaces the handler of SIGTERM, but a run that is terminated writes a checkpoint
        with replaced_handlers({signal.SIGTERM: signal.getsignal(signal.SIGTERM)}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**options, **LOG_OPTIONS)
    except Exception as error:
        with suppress(Exception):
            ray.shutdown()
        hint = f"; is this machine a node of it? If not: ray start --address={address}" if address else ""
        summary = _first_line(error) or type(error).__name__
        raise RunError(f"worker ray: Ray could not be started ({summary}){hint}") from None
    restore_prints, owner = _silence_prints(), os.getpid()

    def disconnect() -> None:
        """Disconnect, except in a fork of the process that connected."""
        if os.getpid() == owner:
            ray.shutdown()
            restore_prints()

    return disconnect


def _check_address(address: str) -> None:
    """Check in a child process that a Ray cluster answers: the library waits for minutes and ignores Ctrl-C."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=STATUS_TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise RunError(f"worker ray: the server at {address} is not a Ray cluster, or does not answer") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise RunError(
            f"worker ray: no Ray cluster at {address} ({to_single_line(lines[-1] if lines else 'no output')})"
        )


def _silence_prints() -> Callable[[], None]:
    """Suppress Ray's messages about dead processes on standard output; the worker logs its own."""
    from ray._private import worker as private_worker

    name = "print_to_stdstream"
    printing = getattr(private_worker, name, None)
    if printing is None:
        return lambda: None
    setattr(private_worker, name, lambda *_, **__: None)
    return lambda: setattr(private_worker, name, printing)
