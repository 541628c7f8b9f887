"""The workers by name, and the choice of one: NAME, NAME:N or NAME:ADDRESS.

The worker is an option of a run and not part of its experiment. It is stored with the results, and a run can be resumed
with any other worker. To add a worker, add an entry to WORKERS.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch

from offbeat.core.errors import ConfigError, describe_error, unknown_name
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork, World
from offbeat.core.threads import one_thread
from offbeat.engine import Worker
from offbeat.training import Dispatcher, Trainer
from offbeat.training.cuda import CudaTrainer
from offbeat.workers.batched import Batched
from offbeat.workers.inline import Inline

log = logging.getLogger("offbeat")

MAX_COUNT = 1024
ADDRESS = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.ASCII)
CONNECT_TIMEOUT = 5.0  # seconds

TRIED_JOBS, TRIED_STACK = 3, 8  # jobs that `auto` trains one by one, and as a stack
SECONDS_PER_SEND = 0.5e-3  # of one core, to send a job to a process and its result back


@dataclass(frozen=True)
class WorkerType:
    """A kind of worker; `make` gets the run's trainer, and the number or address after the colon if there is one."""

    make: Callable[[Trainer, Any], Worker]
    count_unit: str | None = None  # the unit of N; None: it takes no number
    address_kind: str | None = None  # what an address belongs to; None: it takes no address
    missing: Callable[[], str | None] = lambda: None  # returns why it cannot work on this machine, or None
    remedy: str | None = None  # advice for the error if it cannot work; None: `inline` is used instead
    device: str = "cpu"  # of data and models
    uses_cores: bool = False  # whether N counts cores of this machine, which parallel runs share


@dataclass(frozen=True)
class WorkerChoice:
    """A worker by name, with its number or address."""

    name: str = "inline"
    argument: int | str | None = None

    def __str__(self) -> str:
        """Format the choice as `parse_worker` reads it."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


INLINE, AUTO = WorkerChoice(), WorkerChoice("auto")


# ------------------------------------------------------------ making workers


def _make_processes(trainer: Trainer, count: int | None) -> Worker:
    """Make the worker `processes`."""
    from offbeat.workers.processes import Processes  # needs Linux

    return Processes(trainer, count)


def _processes_unavailable() -> str | None:
    """Return why processes cannot be forked: only on Linux the libraries beneath PyTorch survive a fork."""
    return None if sys.platform == "linux" else f"it needs Linux, and this is {sys.platform}"


def _make_batched(trainer: Trainer, count: int | None) -> Worker:
    dispatcher = Dispatcher(trainer)
    return make_batched(dispatcher, count or dispatcher.useful_cores(os.cpu_count() or 1))


def make_batched(dispatcher: Dispatcher, cores: int) -> Worker:
    """Make a worker that trains stacks on these cores; without processes it trains the same stacks one by one."""
    if cores == 1 or _processes_unavailable() is not None:
        return Batched(dispatcher, cores)
    from offbeat.workers.processes import Processes

    return Batched(dispatcher, cores, lambda train: Processes(train, cores - 1, dispatcher.max_jobs, helps=True))


def make_shared(trainers: Sequence[Trainer], owner: Callable[[Job], int] | None = None) -> Worker:
    """Make one worker for the jobs of several runs, on the device of their trainers."""
    return Batched(CudaTrainer(trainers, owner))


def _make_ray(trainer: Trainer, address: str | None) -> Worker:
    """Make the worker `ray`."""
    from offbeat.workers.ray_worker import RayWorker  # an optional dependency that takes seconds to import

    return RayWorker(trainer, address, constant_tensors=trainer.data.tensors())


def _ray_unavailable() -> str | None:
    """Return why the worker `ray` cannot work here, or None."""
    return "Ray is not installed" if find_spec("ray") is None else None


def _gpu_unavailable() -> str | None:
    """Return why the worker `cuda` cannot work here, or None."""
    return None if torch.cuda.is_available() else "PyTorch finds no GPU here"


WORKERS: dict[str, WorkerType] = {
    "inline": WorkerType(lambda trainer, _: Inline(trainer)),
    "processes": WorkerType(_make_processes, count_unit="processes", missing=_processes_unavailable, uses_cores=True),
    "batched": WorkerType(_make_batched, count_unit="cores", uses_cores=True),
    "cuda": WorkerType(
        lambda trainer, _: make_shared([trainer]),
        missing=_gpu_unavailable,
        remedy="use processes, which uses all cores",
        device="cuda",
    ),
    "ray": WorkerType(
        _make_ray, address_kind="a cluster", missing=_ray_unavailable, remedy="install it: pip install 'offbeat[ray]'"
    ),
    "auto": WorkerType(lambda trainer, _: Inline(trainer)),  # replaced by `choose_fastest` before a worker is made
}


@runtime_checkable
class ReportsNote(Protocol):
    """A worker that may find something out during a run that must be stored with its name."""

    note: Callable[[str], object]


def make_worker(choice: WorkerChoice, trainer: Trainer, note: Callable[[str], object] | None = None) -> Worker:
    """Make a worker; `note` stores a remark of the worker about the run."""
    worker = WORKERS[choice.name].make(trainer, choice.argument)
    if note is not None and isinstance(worker, ReportsNote):
        worker.note = note
    return worker


# ------------------------------------------------------------ choosing a worker


def parse_worker(text: str) -> WorkerChoice:
    """Parse 'inline', 'processes:2' or 'ray:10.0.0.1:6399'; errors name the nearest valid choice."""
    name, colon, argument = text.strip().partition(":")
    if name not in WORKERS:
        raise unknown_name("worker", name, WORKERS)
    worker = WORKERS[name]
    if worker.remedy is not None and (reason := worker.missing()) is not None:
        raise ConfigError(f"worker {name}: {reason}; {worker.remedy}")
    if not colon:
        return WorkerChoice(name)
    if worker.address_kind is not None:
        return WorkerChoice(name, _check_address(text, name, argument, worker.address_kind))
    if worker.count_unit is None:
        raise ConfigError(f"worker {text!r}: {name} takes no number; write {name}")
    if not (argument.isascii() and argument.isdecimal() and 1 <= len(argument) <= 9):
        raise ConfigError(f"worker {text!r}: write {name}, or {name}:N with a whole number of {worker.count_unit}")
    if not 1 <= int(argument) <= MAX_COUNT:
        raise ConfigError(f"worker {text!r}: from 1 to {MAX_COUNT} {worker.count_unit}, not {int(argument)}")
    return WorkerChoice(name, int(argument))


def _check_address(text: str, name: str, address: str, kind: str) -> str:
    """Return the address if a server listens there; a library would retry for minutes."""
    match = ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ConfigError(f"worker {text!r}: write {name}, or {name}:HOST:PORT with the address of {kind}")
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConfigError(f"worker {text!r}: no server answers at {address} ({error.strerror or error})") from None
    return address


def recorded_choice(text: str | None) -> WorkerChoice:
    """Parse the worker that a run folder names; `inline` if there is none, or with a warning if it is unknown here."""
    try:
        return INLINE if text is None else parse_worker(text)
    except ConfigError as error:
        log.warning("the run was started with another worker (%s); inline is used", error)
        return INLINE


def usable(choice: WorkerChoice) -> WorkerChoice:
    """Return the choice, or `inline` with a warning if it cannot work on this machine."""
    reason = WORKERS[choice.name].missing()
    if reason is None:
        return choice
    log.warning("worker %s: %s; inline is used", choice, reason)
    return INLINE


def device_of(choice: WorkerChoice) -> str:
    """Return the device on which the worker trains."""
    return WORKERS[choice.name].device


def cores_of(choice: WorkerChoice) -> int:
    """Return how many cores of this machine the worker would use alone; 0 if unknown."""
    if choice != INLINE and not WORKERS[choice.name].uses_cores:
        return 0
    return choice.argument if isinstance(choice.argument, int) else os.cpu_count() or 1


def share_cores(choice: WorkerChoice, runs: int) -> WorkerChoice:
    """Return the choice for one of several parallel runs; a single process is replaced by `inline`."""
    if runs == 1 or choice == INLINE or not WORKERS[choice.name].uses_cores:
        return choice
    each = max(1, cores_of(choice) // runs)
    return INLINE if (choice.name, each) == ("processes", 1) else WorkerChoice(choice.name, each)


def choose_fastest(trainer: Trainer, world: World, cores: int | None = None) -> tuple[WorkerChoice, str]:
    """Return the worker for `auto` and the reason: try a few jobs each way, for these cores or all.

    The results of these jobs are dropped. The choice is stored with the run, which keeps it when it is resumed.
    """
    if WORKERS["cuda"].missing() is None:
        return WorkerChoice("cuda"), "there is a GPU"
    clients = enumerate(islice(world.clients.items(), TRIED_STACK))
    jobs = [Job(i, client, 0, world.model, 0, LocalWork(), n, {}, world.seed) for i, (client, n) in clients]
    cores = cores or os.cpu_count() or 1
    try:
        with one_thread():
            trainer(jobs[0])  # warm up: create everything that is created once
            one_by_one = _seconds(lambda: [trainer(job) for job in jobs[:TRIED_JOBS]]) / min(TRIED_JOBS, len(jobs))
            dispatcher = Dispatcher(trainer)
            stack_cores = dispatcher.useful_cores(cores)
            dispatcher.train_many(jobs)
            stacked = _seconds(lambda: dispatcher.train_many(jobs)) / len(jobs) / stack_cores
            dispatcher.close()
    except MemoryError:
        raise
    except Exception as error:  # of a client's job: the run will report it for that client
        return INLINE, f"a trial job failed: {describe_error(error)}"
    costs = {INLINE: one_by_one, WorkerChoice("batched", stack_cores): stacked}
    if cores > 1 and WORKERS["processes"].missing() is None:
        costs[WorkerChoice("processes", cores)] = max(one_by_one / cores, SECONDS_PER_SEND)
    best = min(costs, key=lambda choice: costs[choice])
    times = ", ".join(f"{choice} {1e3 * cost:.3g}" for choice, cost in costs.items())
    return best, f"milliseconds per job, about: {times}"


def _seconds(work: Callable[[], object]) -> float:
    """Measure the host time of a function in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
