"""What a live engine and its sites say to each other, whatever carries it: Flower, or queues within a process.

A site is reached at an address, which may be another one each time it comes; what stays is its name, and the token
that proves it is the same one. The engine gives each name a client number (`roster`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.protocol import LocalWork

# ---------------------------------------------------------------- from a site


@dataclass(frozen=True, slots=True)
class Hello:
    """A site that can be sent work. It comes before its first work, and again whenever it was away."""

    address: int
    name: str
    token: str  # proves that it is the site of that name: a key's fingerprint, or a secret it drew once
    num_examples: int
    layout: str  # digest of its model's layout
    code: str  # digest of the rules it can follow: the server never ships code
    newest: int | None = None  # the last ticket of this run that it has answered, as far as it knows


@dataclass(frozen=True, slots=True)
class Returned:
    """How a site's job ended."""

    address: int
    answer: Result | Failure
    num_examples: int  # what the site has now: its data may grow
    seconds: float | None = None  # of training, as the site measured them
    size: int = 0  # bytes that travelled


@dataclass(frozen=True, slots=True)
class Scores:
    """A model on a site's own test examples: the answer to a question."""

    address: int
    now: float  # of the question
    version: int
    num_examples: int  # of them
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Gone:
    """Nobody answers at this address any more."""

    address: int
    why: str


@dataclass(frozen=True, slots=True)
class Garbled:
    """Something came from there that is no message: it is counted and dropped."""

    address: int
    why: str


Heard = Hello | Returned | Scores | Gone | Garbled

# ---------------------------------------------------------------- to a site


@dataclass(frozen=True, slots=True)
class Assignment:
    """A job, with all that its site needs to compute it: pushed again, it is the same job."""

    ticket: int
    client: int
    index: int  # n-th job of this client: with the seed and the client, the random key
    base_version: int
    base: Tensor
    work: LocalWork
    num_examples: int  # how much of its data the site is to train on
    seed: int
    accepted: int | None  # the last ticket of this client that was accepted: what was kept for it becomes the site's

    @classmethod
    def of(cls, job: Job, accepted: int | None) -> Assignment:
        numbers = (job.ticket, job.client, job.index, job.base_version)
        return cls(*numbers, job.base, job.work, job.num_examples, job.seed, accepted)


@dataclass(frozen=True, slots=True)
class Question:
    """How good is this model on your own test examples?"""

    now: float
    version: int
    model: Tensor


@dataclass(frozen=True, slots=True)
class Farewell:
    """The run has ended, or this site cannot take part in it (`refused`): it need not wait for more."""

    reason: str
    refused: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)


Order = Assignment | Question | Farewell


class Transport(Protocol):
    """Carries both ways. It greets whoever turns up and tells of them by Hello; sending never waits for a site."""

    def send(self, address: int, order: Order) -> int:
        """Hand it over, and say how many bytes it is; what becomes of it is heard."""
        ...

    def receive(self, timeout: float) -> list[Heard]:
        """What has come, at least one message unless `timeout` seconds have passed."""
        ...

    def close(self) -> None: ...
