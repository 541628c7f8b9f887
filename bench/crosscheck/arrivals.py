"""The same arrivals for two servers: ours is driven and recorded, theirs is fed the record and has to follow.

Local models are given vectors, so nothing depends on training. What a client was sent, and so its delta and its
staleness, each server works out for itself: if the rules agree, all of it agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offbeat.core.protocol import Strategy
from offbeat.testing import ScriptedEngine, hand_world

Vector = NDArray[np.float64]

EXAMPLES = {0: 10, 1: 25, 2: 40, 3: 15, 4: 60}  # of each client
SECONDS = {0: 1.0, 1: 1.7, 2: 2.3, 3: 4.1, 4: 6.7}  # a local step takes it
SIZE = 7
START: Vector = np.random.default_rng(1).normal(size=SIZE)
AGREE = 1e-5


@dataclass(frozen=True)
class Moment:
    """One arrival, and where our server stood after it."""

    now: float
    client: int
    local: Vector
    model: Vector
    working: dict[int, int | None]  # client -> steps, of everybody with a job after it
    closed: bool  # of a synchronous method: it was the last of its round


@dataclass
class Peer:
    """Their server. `base` and `since` (a version) are of the models it sent; `model` is what it would send now."""

    model: Vector = field(default_factory=START.copy)
    version: int = 0
    base: dict[int, Vector] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # assigned, by those who assign

    def serve(self, client: int) -> None:
        self.base[client] = self.model.copy()
        self.since[client] = self.version

    def arrive(self, client: int, local: Vector, now: float) -> None:
        raise NotImplementedError

    def check(self, moment: Moment) -> None:
        """Whatever else of theirs can be compared."""

    def commit(self, model: Any) -> None:
        self.model = np.array(model, dtype=np.float64)
        self.version += 1


class RoundPeer(Peer):
    """Their server, of a synchronous method: it is handed a whole round at once."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[int, Vector] = {}

    def arrive(self, client: int, local: Vector, now: float) -> None:
        self.answers[client] = local

    def close(self) -> None:
        answers, self.answers = self.answers, {}
        self.commit(self.average(answers))

    def average(self, answers: dict[int, Vector]) -> Any:
        raise NotImplementedError


def recorded(
    strategy: Strategy, length: int = 60, seed: int = 0, late: float = 0.0, away: float = 0.0, present: int = 5
) -> list[Moment]:
    """Play our server. A job takes steps times seconds, up to a tenth more or less, or (a share of `late`) twice as
    long; a share of `away` of the clients leave after their answer, for a while, and only the first `present` are there
    from the start.
    """
    draw = np.random.default_rng(seed)
    engine = ScriptedEngine(strategy, hand_world(START.tolist(), EXAMPLES))
    back = {client: 6.0 * client for client in EXAMPLES if client >= present}  # client -> when it comes
    for client in range(present):
        engine.ready(client)
    engine.advance()
    due: dict[int, float] = {}  # ticket -> when it is answered
    moments: list[Moment] = []
    while len(moments) < length:
        for ticket, job in engine.ledger.open.items():
            if ticket not in due:  # the first job measures the client: it takes just as long as it should
                slower = (
                    1.0
                    if job.index == 0
                    else draw.uniform(1.9, 2.1)
                    if draw.random() < late
                    else draw.uniform(0.9, 1.1)
                )
                due[ticket] = job.started + (job.work.steps or 1) * SECONDS[job.client] * slower
        if back and (not engine.ledger.open or min(back.values()) < min(due[ticket] for ticket in engine.ledger.open)):
            client = min(back, key=back.__getitem__)
            engine.ready(client, at=max(back.pop(client), engine.now))
            engine.advance()
            continue
        ticket = min(engine.ledger.open, key=lambda one: (due[one], one))
        waiting = len(engine.ledger.open)
        engine.move(max(due[ticket], engine.now))
        if len(engine.ledger.open) != waiting:
            continue  # a timer gave somebody work meanwhile, who may be faster
        client, local = engine.ledger.open[ticket].client, draw.normal(size=SIZE)
        leaves = away > 0 and draw.random() < away
        if leaves:
            back[client] = engine.now + draw.uniform(5.0, 15.0)
        engine.arrive(client, torch.from_numpy(local), reachable=not leaves)
        engine.advance()
        jobs = engine.ledger.open.values()
        closed = all(job.started == engine.now for job in jobs)  # nobody is waited for any more
        moments.append(
            Moment(
                engine.now,
                client,
                local,
                engine.model.numpy().copy(),
                {job.client: job.work.steps for job in jobs},
                closed,
            )
        )
    return moments


def difference(strategy: Strategy, peer: Peer, **how: Any) -> float:
    """The largest difference of any weight at any moment."""
    busy, largest = set(EXAMPLES), 0.0
    for client in sorted(busy):
        peer.serve(client)
    for moment in recorded(strategy, **how):
        peer.arrive(moment.client, moment.local, moment.now)
        if isinstance(peer, RoundPeer) and moment.closed:
            peer.close()
        for client in sorted(moment.working.keys() - (busy - {moment.client})):
            peer.serve(client)
        peer.check(moment)
        busy = set(moment.working)
        largest = max(largest, float(np.abs(peer.model - moment.model).max()))
    return largest


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    package: str
    theirs: str
    ours: str
    difference: float
    rule: str = ""  # what differs; empty: nothing does

    @property
    def holds(self) -> bool:
        """They agree where we say so, and differ where we say so: a rule they have changed is found out."""
        return self.difference > 1e-3 if self.rule else self.difference <= AGREE


def spelled(strategy: Any) -> str:
    """The strategy with the settings that are not its defaults."""
    given = []
    for one in fields(strategy):
        value = getattr(strategy, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value != default:
            given.append(f"{one.name}={value!r}")
    return f"{type(strategy).__name__}({', '.join(given)})"


@dataclass
class Table:
    package: str
    rows: list[Row] = field(default_factory=list)

    def same(self, theirs: str, peer: Peer, strategy: Any, **how: Any) -> None:
        self.rows.append(Row(self.package, theirs, spelled(strategy), difference(strategy, peer, **how)))

    def differs(self, rule: str, theirs: str, peer: Peer, strategy: Any, **how: Any) -> None:
        self.rows.append(Row(self.package, theirs, spelled(strategy), difference(strategy, peer, **how), rule))


Check = Callable[[], Iterable[Row]]
