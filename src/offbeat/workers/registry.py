"""Who computes the jobs of a run: its worker, written NAME, NAME:N or NAME:ADDRESS.

A worker decides when and where jobs are computed, never what. So it is an option of a run and no part of an
experiment: it is written down beside the results, and a run that was begun with one goes on with any other.
One worker more is an entry more in WORKERS.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import torch

from offbeat.core.errors import ConfigError, unknown
from offbeat.core.jobs import Job
from offbeat.engine.worker import Worker
from offbeat.training.cuda.cuda_trainer import DeviceTrainer
from offbeat.training.stacked.stack_trainer import StackTrainer
from offbeat.training.trainer import Trainer
from offbeat.workers.batched import Batched
from offbeat.workers.inline import Inline

log = logging.getLogger("offbeat")

MOST = 1024  # of whatever a worker has N of
ADDRESS = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.ASCII)
ANSWERS = 5.0  # seconds within which somebody at an address is to answer


@dataclass(frozen=True)
class Kind:
    """`make` is handed the run's trainer, and what follows the colon where something does: N or an address."""

    make: Callable[[Trainer, Any], Worker]
    counts: str | None = None  # what N is a number of; None: it takes none
    at: str | None = None  # what an address is one of; None: it takes none
    missing: Callable[[], str | None] = lambda: None  # why it cannot work on this machine, None if it can
    instead: str | None = None  # what to do then: it is refused; None: inline is used
    device: str = "cpu"  # where data and models are to lie
    cores: bool = False  # N is of the cores of this machine: runs at the same time share them


def _processes(trainer: Trainer, count: int | None) -> Worker:
    from offbeat.workers.processes import Processes  # not on every system

    return Processes(trainer, count)


def _no_processes() -> str | None:
    """They are forked, and elsewhere libraries beneath PyTorch do not survive that, or there is no such thing."""
    import sys

    return None if sys.platform == "linux" else f"it needs Linux, and this is {sys.platform}"


def _batched(trainer: Trainer, count: int | None) -> Worker:
    stacked = StackTrainer(trainer)
    return batched(stacked, count or stacked.hands(os.cpu_count() or 1))


def batched(stacked: StackTrainer, hands: int) -> Worker:
    """So many stacks at a time; where there are no processes the same ones, one after the other."""
    if stacked.spread(hands):
        return Batched(stacked)
    if hands == 1 or _no_processes() is not None:
        return Batched(stacked, hands)
    from offbeat.workers.processes import Processes

    return Batched(stacked, hands, lambda train: Processes(train, hands - 1, stacked.most, helps=True))


def pooled(trainers: Sequence[Trainer], owner: Callable[[Job], int] | None = None) -> Worker:
    """One worker for the jobs of many runs, on the device of their trainers."""
    return Batched(DeviceTrainer(trainers, owner))


def _ray(trainer: Trainer, address: str | None) -> Worker:
    from offbeat.workers.ray_worker import Ray  # an extra, and seconds to import

    return Ray(trainer, address, still=trainer.data.tensors())


def _no_ray() -> str | None:
    return "Ray is not installed" if find_spec("ray") is None else None


def _no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "PyTorch finds no GPU here"


WORKERS: dict[str, Kind] = {
    "inline": Kind(lambda trainer, _: Inline(trainer)),
    "processes": Kind(_processes, counts="processes", missing=_no_processes, cores=True),
    "batched": Kind(_batched, counts="cores", cores=True),
    "cuda": Kind(
        lambda trainer, _: pooled([trainer]),
        missing=_no_gpu,
        instead="use processes, which fills the cores",
        device="cuda",
    ),
    "ray": Kind(_ray, at="a cluster", missing=_no_ray, instead="pip install 'offbeat[ray]' brings it"),
    "auto": Kind(lambda trainer, _: Inline(trainer)),  # settled before it is made: see `auto`
}


@dataclass(frozen=True)
class Choice:
    name: str = "inline"
    of: int | str | None = None  # a number, or an address

    def __str__(self) -> str:
        return self.name if self.of is None else f"{self.name}:{self.of}"


INLINE, AUTO = Choice(), Choice("auto")


def cores_of(choice: Choice) -> int:
    """How many it would use of this machine, if it were alone; 0 where that cannot be said."""
    if choice != INLINE and not WORKERS[choice.name].cores:
        return 0
    return choice.of if isinstance(choice.of, int) else os.cpu_count() or 1


def shared(choice: Choice, runs: int) -> Choice:
    """The same for one of so many runs at a time. A single process would only be a longer way."""
    if runs == 1 or choice == INLINE or not WORKERS[choice.name].cores:
        return choice
    each = max(1, cores_of(choice) // runs)
    return INLINE if (choice.name, each) == ("processes", 1) else Choice(choice.name, each)


def device_of(choice: Choice) -> str:
    return WORKERS[choice.name].device


def parse(text: str) -> Choice:
    """'inline', 'processes:2', 'ray:10.0.0.1:6399'; errors say what is wrong and the nearest right thing."""
    name, colon, number = text.strip().partition(":")
    if name not in WORKERS:
        raise unknown("worker", name, WORKERS)
    kind, counts = WORKERS[name], WORKERS[name].counts
    if kind.instead is not None and (reason := kind.missing()) is not None:
        raise ConfigError(f"worker {name}: {reason}; {kind.instead}")
    if not colon:
        return Choice(name)
    if kind.at is not None:
        return Choice(name, _answering(text, name, number, kind.at))
    if counts is None:
        raise ConfigError(f"worker {text!r}: {name} takes no number; write {name}")
    if not (number.isascii() and number.isdecimal() and 1 <= len(number) <= 9):
        raise ConfigError(f"worker {text!r}: write {name}, or {name}:N with a whole number of {counts}")
    if not 1 <= int(number) <= MOST:
        raise ConfigError(f"worker {text!r}: from 1 to {MOST} {counts}, not {int(number)}")
    return Choice(name, int(number))


def _answering(text: str, name: str, address: str, whose: str) -> str:
    """The address, if somebody is there: a library would try for minutes."""
    found = ADDRESS.fullmatch(address)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise ConfigError(f"worker {text!r}: write {name}, or {name}:HOST:PORT with the address of {whose}")
    try:
        socket.create_connection((found[1].strip("[]"), int(found[2])), ANSWERS).close()
    except OSError as error:
        raise ConfigError(f"worker {text!r}: nobody answers at {address} ({error.strerror or error})") from None
    return address


def usable(choice: Choice) -> Choice:
    """The same, or inline where it cannot work on this machine, which is said."""
    reason = WORKERS[choice.name].missing()
    if reason is None:
        return choice
    log.warning("worker %s: %s; inline is used", choice, reason)
    return INLINE


def begun_with(text: str | None) -> Choice:
    """What a run folder says of how it was begun: nothing, before there was a choice; a name that is not known here,
    where it comes from elsewhere.
    """
    try:
        return INLINE if text is None else parse(text)
    except ConfigError as error:
        log.warning("the run was begun with another worker (%s); inline is used", error)
        return INLINE


@runtime_checkable
class Noting(Protocol):
    """A worker that may find out, while it works, what has to be stored about who computed a run."""

    note: Callable[[str], object]


def make(choice: Choice, trainer: Trainer, note: Callable[[str], object] | None = None) -> Worker:
    worker = WORKERS[choice.name].make(trainer, choice.of)
    if note is not None and isinstance(worker, Noting):
        worker.note = note
    return worker
