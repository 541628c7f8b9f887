"""Process the same arrivals with two servers: ours is run and recorded, theirs replays the record.

Local models are random vectors, so nothing depends on training. Each server determines by itself which model a client
received, and so its delta and its staleness.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from offbeat.core.protocol import Strategy
from offbeat.testing import ScriptedEngine, hand_world

Vector = NDArray[np.float64]

EXAMPLES = {0: 10, 1: 25, 2: 40, 3: 15, 4: 60}  # client -> number of examples
SECONDS = {0: 1.0, 1: 1.7, 2: 2.3, 3: 4.1, 4: 6.7}  # client -> duration of a local step
SIZE = 7
START: Vector = np.random.default_rng(1).normal(size=SIZE)
MAX_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class Arrival:
    """One arrival, and the state of our server after it."""

    now: float
    client: int
    local: Vector
    model: Vector
    working: dict[int, int | None]  # clients with a job -> local steps
    closes_round: bool  # in a synchronous method: the last arrival of its round


class Weights(nn.Module):
    """A model with one vector."""

    def __init__(self, w: Vector = START) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))


@dataclass
class Peer:
    """The server of another framework."""

    model: Vector = field(default_factory=START.copy)  # the current global model
    version: int = 0
    base: dict[int, Vector] = field(default_factory=dict)  # client -> model it received
    since: dict[int, int] = field(default_factory=dict)  # client -> version of that model
    steps: dict[int, int] = field(default_factory=dict)  # client -> assigned steps, if the method assigns them

    def serve(self, client: int) -> None:
        self.base[client] = self.model.copy()
        self.since[client] = self.version

    def arrive(self, client: int, local: Vector, now: float) -> None:
        raise NotImplementedError

    def check(self, arrival: Arrival) -> None:
        """Compare further state of the server."""

    def commit(self, model: Any) -> None:
        self.model = np.array(model, dtype=np.float64)
        self.version += 1


class RoundPeer(Peer):
    """The server of a synchronous method, which processes a whole round at once."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[int, Vector] = {}

    def arrive(self, client: int, local: Vector, now: float) -> None:
        self.answers[client] = local

    def close_round(self) -> None:
        answers, self.answers = self.answers, {}
        self.commit(self.average(answers))

    def average(self, answers: dict[int, Vector]) -> Any:
        raise NotImplementedError


def record_arrivals(
    strategy: Strategy, length: int = 60, seed: int = 0, late: float = 0.0, away: float = 0.0, present: int = 5
) -> list[Arrival]:
    """Run our server and record the arrivals.

    The duration of a job varies by a tenth, and a share `late` of the jobs takes twice as long. With probability `away`
    a client leaves for a while after its update. Only the first `present` clients are present at the start.
    """
    draw = np.random.default_rng(seed)
    engine = ScriptedEngine(strategy, hand_world(START.tolist(), EXAMPLES))
    back = {client: 6.0 * client for client in EXAMPLES if client >= present}  # client -> time of its return
    for client in range(present):
        engine.ready(client)
    engine.advance()
    due: dict[int, float] = {}  # ticket -> time of arrival
    arrivals: list[Arrival] = []
    while len(arrivals) < length:
        open_jobs = engine.ledger.open_jobs
        for ticket, job in open_jobs.items():
            if ticket in due:
                continue
            if job.index == 0:
                factor = 1.0  # exact, because the first job measures the speed of the client
            else:
                factor = draw.uniform(1.9, 2.1) if draw.random() < late else draw.uniform(0.9, 1.1)
            due[ticket] = job.started + (job.work.steps or 1) * SECONDS[job.client] * factor
        if back and (not open_jobs or min(back.values()) < min(due[ticket] for ticket in open_jobs)):
            client = min(back, key=back.__getitem__)
            engine.ready(client, at=max(back.pop(client), engine.now))
            engine.advance()
            continue
        ticket = min(engine.ledger.open_jobs, key=lambda ticket: (due[ticket], ticket))
        count = len(engine.ledger.open_jobs)
        engine.move(max(due[ticket], engine.now))
        if len(engine.ledger.open_jobs) != count:
            continue  # a timer started another job, which may end earlier
        client, local = engine.ledger.open_jobs[ticket].client, draw.normal(size=SIZE)
        leaves = away > 0 and draw.random() < away
        if leaves:
            back[client] = engine.now + draw.uniform(5.0, 15.0)
        engine.arrive(client, torch.from_numpy(local), reachable=not leaves)
        engine.advance()
        jobs = engine.ledger.open_jobs.values()
        closes_round = all(job.started == engine.now for job in jobs)
        arrivals.append(
            Arrival(
                engine.now,
                client,
                local,
                engine.model.numpy().copy(),
                {job.client: job.work.steps for job in jobs},
                closes_round,
            )
        )
    return arrivals


def largest_difference(strategy: Strategy, peer: Peer, **how: Any) -> float:
    """Return the largest difference of any weight after any arrival."""
    busy, largest = set(EXAMPLES), 0.0
    for client in sorted(busy):
        peer.serve(client)
    for arrival in record_arrivals(strategy, **how):
        peer.arrive(arrival.client, arrival.local, arrival.now)
        if isinstance(peer, RoundPeer) and arrival.closes_round:
            peer.close_round()
        for client in sorted(arrival.working.keys() - (busy - {arrival.client})):
            peer.serve(client)
        peer.check(arrival)
        busy = set(arrival.working)
        largest = max(largest, float(np.abs(peer.model - arrival.model).max()))
    return largest


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class ComparisonRow:
    """The result of one comparison."""

    package: str
    theirs: str
    ours: str
    difference: float
    known_difference: str = ""  # their rule, where it differs from ours

    @property
    def as_documented(self) -> bool:
        """Whether the rules agree or differ as documented, so that a changed rule is detected."""
        return self.difference > 1e-3 if self.known_difference else self.difference <= MAX_DIFFERENCE


def format_strategy(strategy: Any) -> str:
    """Format the strategy with the settings that differ from their defaults."""
    changed = []
    for setting in fields(strategy):
        value = getattr(strategy, setting.name)
        default = setting.default_factory() if setting.default_factory is not MISSING else setting.default
        if value != default:
            changed.append(f"{setting.name}={value!r}")
    return f"{type(strategy).__name__}({', '.join(changed)})"


@dataclass
class Table:
    """The comparisons with one framework."""

    package: str
    rows: list[ComparisonRow] = field(default_factory=list)

    def same(self, theirs: str, peer: Peer, strategy: Any, **how: Any) -> None:
        """Add a comparison of rules that agree."""
        self.differs("", theirs, peer, strategy, **how)

    def differs(self, rule: str, theirs: str, peer: Peer, strategy: Any, **how: Any) -> None:
        """Add a comparison with a server whose rule differs from ours."""
        difference = largest_difference(strategy, peer, **how)
        self.rows.append(ComparisonRow(self.package, theirs, format_strategy(strategy), difference, rule))
