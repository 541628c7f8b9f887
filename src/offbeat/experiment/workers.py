"""Who computes the jobs of a run: its worker, written NAME or NAME:N.

A worker decides when and where jobs are computed, never what. So it is an option of a run and no part of an
experiment: it is written down beside the results, and a run that was begun with one goes on with any other.
One worker more is an entry more in WORKERS.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from offbeat.client.device import DeviceTrainer
from offbeat.client.stack import StackTrainer
from offbeat.client.training import Trainer
from offbeat.core.errors import ConfigError, unknown
from offbeat.core.jobs import Job
from offbeat.engines.workers import Worker
from offbeat.engines.workers.batched import Batched
from offbeat.engines.workers.inline import Inline

log = logging.getLogger("offbeat")

MOST = 1024  # of whatever a worker has N of


@dataclass(frozen=True)
class Kind:
    """`make` is handed the run's trainer, and N where it is given."""

    make: Callable[[Trainer, int | None], Worker]
    counts: str | None = None  # what N is a number of; None: it takes none
    missing: Callable[[], str | None] = lambda: None  # why it cannot work on this machine, None if it can
    device: str = "cpu"  # where data and models are to lie
    cores: bool = False  # N is of the cores of this machine: runs at the same time share them


def _processes(trainer: Trainer, count: int | None) -> Worker:
    from offbeat.engines.workers.processes import Processes  # not on every system

    return Processes(trainer, count)


def _no_processes() -> str | None:
    """They are forked, and elsewhere libraries beneath PyTorch do not survive that, or there is no such thing."""
    import sys

    return None if sys.platform == "linux" else f"it needs Linux, and this is {sys.platform}"


def _batched(trainer: Trainer, count: int | None) -> Worker:
    return batched(StackTrainer(trainer), count or os.cpu_count() or 1)


def batched(stacked: StackTrainer, hands: int) -> Worker:
    """So many stacks at a time; where there are no processes the same ones, one after the other."""
    if hands == 1 or _no_processes() is not None:
        return Batched(stacked, hands, stacked.light)
    from offbeat.engines.workers.processes import Processes

    return Batched(stacked, hands, stacked.light, lambda train: Processes(train, hands - 1, stacked.most, helps=True))


def pooled(trainers: Sequence[Trainer], owner: Callable[[Job], int]) -> Worker:
    """One worker for the jobs of many runs, on the device of their trainers."""
    return Batched(DeviceTrainer(trainers, owner))


def _no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "PyTorch finds no GPU here"


WORKERS: dict[str, Kind] = {
    "inline": Kind(lambda trainer, _: Inline(trainer)),
    "processes": Kind(_processes, counts="processes", missing=_no_processes, cores=True),
    "batched": Kind(_batched, counts="cores", cores=True),
    "cuda": Kind(lambda trainer, _: pooled([trainer], lambda job: 0), missing=_no_gpu, device="cuda"),
    "auto": Kind(lambda trainer, _: Inline(trainer)),  # settled before it is made: see `auto`
}


@dataclass(frozen=True)
class Choice:
    name: str = "inline"
    count: int | None = None

    def __str__(self) -> str:
        return self.name if self.count is None else f"{self.name}:{self.count}"


INLINE, AUTO = Choice(), Choice("auto")


def cores_of(choice: Choice) -> int:
    """How many it would use of this machine, if it were alone; 0 where that cannot be said."""
    if choice == INLINE or (WORKERS[choice.name].cores and choice.count is None):
        return os.cpu_count() or 1
    return choice.count or 0 if WORKERS[choice.name].cores else 0


def shared(choice: Choice, runs: int) -> Choice:
    """The same for one of so many runs at a time. A single process would only be a longer way."""
    each = max(1, cores_of(choice) // runs)
    return INLINE if choice == INLINE or (choice.name, each) == ("processes", 1) else Choice(choice.name, each)


def device_of(choice: Choice) -> str:
    return WORKERS[choice.name].device


def parse(text: str) -> Choice:
    """'inline', 'processes:2'; errors say what is wrong and the nearest right thing."""
    name, colon, number = text.strip().partition(":")
    if name not in WORKERS:
        raise unknown("worker", name, WORKERS)
    counts = WORKERS[name].counts
    if WORKERS[name].device != "cpu" and (reason := WORKERS[name].missing()) is not None:
        raise ConfigError(f"worker {name}: {reason}; use processes, which fills the cores")
    if not colon:
        return Choice(name)
    if counts is None:
        raise ConfigError(f"worker {text!r}: {name} takes no number; write {name}")
    if not (number.isascii() and number.isdecimal() and 1 <= len(number) <= 9):
        raise ConfigError(f"worker {text!r}: write {name}, or {name}:N with a whole number of {counts}")
    if not 1 <= int(number) <= MOST:
        raise ConfigError(f"worker {text!r}: from 1 to {MOST} {counts}, not {int(number)}")
    return Choice(name, int(number))


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


def make(choice: Choice, trainer: Trainer) -> Worker:
    return WORKERS[choice.name].make(trainer, choice.count)
