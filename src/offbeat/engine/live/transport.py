"""Messages between a live engine and its sites, whatever carries them: HTTPS, Flower, or queues in one process.

A site is reached at an address, which may change each time it connects. Its name stays the same, and its token proves
that it is the same site. The engine assigns a client number to each name (see sites).
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
    """A site can be sent work; it sends this first, and whenever it reconnects."""

    address: int
    name: str
    token: str  # fingerprint of a key, or a secret that the site drew once
    num_examples: int
    layout: str  # digest of its model's layout
    code: str  # digest of the rules it can run: the server never sends code
    newest: int | None = None  # last ticket of this run that it answered, if known


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The outcome of a job."""

    address: int
    answer: Result | Failure
    num_examples: int  # the site's current number of examples
    seconds: float | None = None  # of training, measured by the site
    size: int = 0  # bytes of the message


@dataclass(frozen=True, slots=True)
class Scores:
    """Metrics of a model on a site's own test examples: the answer to a Question."""

    address: int
    now: float  # time of the question
    version: int
    num_examples: int  # number of test examples
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The site at this address is no longer reachable."""

    address: int
    why: str


@dataclass(frozen=True, slots=True)
class InvalidMessage:
    """A message that could not be decoded; it is logged and dropped."""

    address: int
    why: str


SiteMessage = Hello | JobAnswer | Scores | Disconnected | InvalidMessage

# ---------------------------------------------------------------- to a site


@dataclass(frozen=True, slots=True)
class JobMessage:
    """A job with everything the site needs to compute it; sent again, it is the same job."""

    ticket: int
    client: int
    index: int  # n-th job of this client: (seed, client, index) is the random key
    base_version: int
    base: Tensor
    work: LocalWork
    num_examples: int  # number of examples to train on
    seed: int
    accepted: int | None  # last accepted ticket of this client: the rule memory of that job becomes valid

    @classmethod
    def from_job(cls, job: Job, accepted: int | None) -> JobMessage:
        """Return the message for an open job."""
        numbers = (job.ticket, job.client, job.index, job.base_version)
        return cls(*numbers, job.base, job.work, job.num_examples, job.seed, accepted)

    def to_job(self, memory: Mapping[str, Tensor]) -> Job:
        """Return the job that the site computes with its rule memory."""
        numbers = (self.ticket, self.client, self.index)
        return Job(*numbers, self.base, self.base_version, self.work, self.num_examples, memory, self.seed)


@dataclass(frozen=True, slots=True)
class Question:
    """A request to evaluate a model on the site's own test examples."""

    now: float
    version: int
    model: Tensor


@dataclass(frozen=True, slots=True)
class Farewell:
    """The run has ended, or this site cannot take part (`refused`)."""

    reason: str
    refused: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)


ServerMessage = JobMessage | Question | Farewell


class Transport(Protocol):
    """Carries messages both ways, and reports each site that connects by a Hello."""

    def send(self, address: int, order: ServerMessage) -> int:
        """Send a message without waiting for the site; return its size in bytes."""
        ...

    def receive(self, timeout: float) -> list[SiteMessage]:
        """Return the messages that arrived, at least one unless `timeout` seconds have passed."""
        ...

    def close(self) -> None:
        """Release connections; no more messages follow."""
        ...
