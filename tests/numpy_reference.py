"""What the cross-checks share: random arrivals, and a NumPy server that follows our strategy through every event of
them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from offbeat.core.protocol import ClientLost, Commit, Dispatch, Reject, Strategy, TimerFired, UpdateArrived, World
from offbeat.testing import LogEntry, ScriptedEngine, TinyClients, layout_of

Vector = NDArray[np.float64]

LAYERS = (slice(0, 4), slice(4, 7), slice(7, 8))  # of a model of eight numbers
LAYOUT = layout_of([("a", (2, 2), "param"), ("b", (3,), "param"), ("c", (1,), "param")])
EXAMPLES = {0: 10, 1: 25, 2: 40, 3: 15, 4: 60}
N = len(EXAMPLES)
TOTAL = sum(EXAMPLES.values())
SECONDS = {0: 1.0, 1: 1.7, 2: 4.1, 3: 5.3, 4: 13.1}  # of one local step


SEEDS = pytest.mark.parametrize("seed", range(3))


def poly(u: int) -> float:
    return float(1 / np.sqrt(u + 1))


class Reference:
    """A server that follows events. `send` is what it would send to this client now."""

    def __init__(self, w: Vector) -> None:
        self.w, self.version = w, 0
        self.base: dict[int, Vector] = {}
        self.since: dict[int, int] = {}

    def commit(self, w: Vector) -> None:
        self.w, self.version = w, self.version + 1

    def send(self, client: int, now: float) -> Vector:
        self.base[client], self.since[client] = self.w, self.version
        return self.w

    def steps(self, client: int) -> int | None:
        return None

    def arrive(self, client: int, y: Vector, now: float) -> bool | None:
        """False: the update is refused."""
        raise NotImplementedError

    def lost(self, client: int) -> None: ...

    def timer(self, key: str, now: float) -> None: ...


def follow(
    strategy: Strategy, reference: Callable[[Vector], Reference], *, seed: int, length: int = 50, late: float = 0.0,
    lose: float = 0.0,
    present: int = N, trains: bool = False,
) -> None:  # fmt: skip
    """Random arrivals: speeds with a tenth of noise, a share of jobs twice as long or lost, latecomers."""
    draw = np.random.default_rng(seed)
    start = draw.normal(size=8)
    theirs = reference(start.copy())
    world = World(model=torch.tensor(start), layout=LAYOUT, clients=EXAMPLES, seed=seed)
    commits = 0

    def watch(_: ScriptedEngine, entry: LogEntry) -> None:
        nonlocal commits
        event, accepted = entry.event, None
        if isinstance(event, UpdateArrived):
            accepted = theirs.arrive(event.client, event.local.numpy(), event.now)
        elif isinstance(event, ClientLost) and event.ticket is not None:
            theirs.lost(event.client)
        elif isinstance(event, TimerFired):
            theirs.timer(event.key, event.now)
        assert any(isinstance(action, Reject) for action in entry.actions) == (accepted is False)
        for action in entry.actions:
            if isinstance(action, Commit):
                commits += 1
                np.testing.assert_allclose(action.model.numpy(), theirs.w, rtol=0, atol=1e-10)
            if isinstance(action, Dispatch):
                np.testing.assert_allclose(
                    action.model.numpy(), theirs.send(action.client, event.now), rtol=0, atol=1e-10
                )
                assert action.work.steps in (None, theirs.steps(action.client)) or trains
        assert entry.version == theirs.version

    engine = ScriptedEngine(strategy, world, watch=watch, train=TinyClients(LAYOUT) if trains else None)
    coming = {client: 7.0 * client for client in EXAMPLES if client >= present}
    for client in range(present):
        engine.ready(client)
    engine.advance()
    due: dict[int, float] = {}
    for _ in range(10 * length):
        if commits >= length:
            break
        for ticket, job in engine.ledger.open_jobs.items():
            if ticket not in due:
                slower = (
                    1.0
                    if job.index == 0
                    else draw.uniform(1.9, 2.1)
                    if draw.random() < late
                    else draw.uniform(0.9, 1.1)
                )
                due[ticket] = job.started + (job.work.steps or 1) * SECONDS[job.client] * slower
        ticket = min(engine.ledger.open_jobs, key=lambda one: (due[one], one))
        if coming and min(coming.values()) < due[ticket]:
            client = min(coming, key=coming.__getitem__)
            engine.ready(client, at=max(coming.pop(client), engine.now))
            engine.advance()
            continue
        waiting = len(engine.ledger.open_jobs)
        engine.move(max(due[ticket], engine.now))
        if len(engine.ledger.open_jobs) != waiting:
            continue  # a timer gave somebody work meanwhile
        client = engine.ledger.open_jobs[ticket].client
        if draw.random() < lose:
            engine.lose(client)
        else:
            engine.arrive(client, None if trains else torch.tensor(draw.normal(size=8)))
        engine.advance()
    assert commits >= length


class RoundReference(Reference):
    """A round: those who were sent w, until each has answered or was lost."""

    def __init__(self, w: Vector) -> None:
        super().__init__(w)
        self.members: list[int] = []
        self.answers: dict[int, Vector] = {}

    def send(self, client: int, now: float) -> Vector:
        self.members.append(client)
        return super().send(client, now)

    def arrive(self, client: int, y: Vector, now: float) -> None:
        self.answers[client] = y
        self.lost(client)

    def lost(self, client: int) -> None:
        self.members.remove(client)
        if not self.members and self.answers:
            answers, self.answers = self.answers, {}
            self.close(answers)

    def close(self, answers: dict[int, Vector]) -> None:
        self.commit(mean(answers))


def mean(answers: dict[int, Vector]) -> Vector:
    n = sum(EXAMPLES[client] for client in answers)
    total = np.zeros(8)
    for client, y in answers.items():
        total += EXAMPLES[client] / n * y
    return total
