"""Random arrivals, and reference servers in NumPy that are compared with a strategy after every event."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from offbeat.core.protocol import ClientLost, Commit, Dispatch, Reject, Strategy, TimerFired, UpdateArrived, World
from offbeat.testing import LogEntry, ScriptedEngine, TinyClients, layout_of

Vector = NDArray[np.float64]

LAYERS = (slice(0, 4), slice(4, 7), slice(7, 8))  # of a model with eight parameters
LAYOUT = layout_of([("a", (2, 2), "param"), ("b", (3,), "param"), ("c", (1,), "param")])
EXAMPLES = {0: 10, 1: 25, 2: 40, 3: 15, 4: 60}
N = len(EXAMPLES)
TOTAL = sum(EXAMPLES.values())
SECONDS = {0: 1.0, 1: 1.7, 2: 4.1, 3: 5.3, 4: 13.1}  # client -> duration of a local step
SEEDS = pytest.mark.parametrize("seed", range(3))


def poly(u: int) -> float:
    return float(1 / np.sqrt(u + 1))


class Reference:
    """A server that processes the same events as the strategy."""

    def __init__(self, w: Vector) -> None:
        self.w, self.version = w, 0
        self.base: dict[int, Vector] = {}
        self.since: dict[int, int] = {}

    def commit(self, w: Vector) -> None:
        self.w, self.version = w, self.version + 1

    def send(self, client: int, now: float) -> Vector:
        """Return the model that this client receives now."""
        self.base[client], self.since[client] = self.w, self.version
        return self.w

    def steps(self, client: int) -> int | None:
        return None

    def arrive(self, client: int, y: Vector, now: float) -> bool | None:
        """Process an update; return False if it is rejected."""
        raise NotImplementedError

    def lost(self, client: int) -> None: ...

    def timer(self, key: str, now: float) -> None: ...


def compare_with_reference(
    strategy: Strategy, reference: Callable[[Vector], Reference], *, seed: int, length: int = 50, late: float = 0.0,
    lose: float = 0.0,
    present: int = N, trains: bool = False,
) -> None:  # fmt: skip
    """Compare a strategy with a reference server on random arrivals.

    Speeds have a tenth of noise, some jobs take twice as long or are lost, and some clients join later.
    """
    draw = np.random.default_rng(seed)
    start = draw.normal(size=8)
    server = reference(start.copy())
    world = World(model=torch.tensor(start), layout=LAYOUT, clients=EXAMPLES, seed=seed)
    commits = 0

    def watch(_: ScriptedEngine, entry: LogEntry) -> None:
        nonlocal commits
        event, accepted = entry.event, None
        if isinstance(event, UpdateArrived):
            accepted = server.arrive(event.client, event.local.numpy(), event.now)
        elif isinstance(event, ClientLost) and event.ticket is not None:
            server.lost(event.client)
        elif isinstance(event, TimerFired):
            server.timer(event.key, event.now)
        assert any(isinstance(action, Reject) for action in entry.actions) == (accepted is False)
        for action in entry.actions:
            if isinstance(action, Commit):
                commits += 1
                np.testing.assert_allclose(action.model.numpy(), server.w, rtol=0, atol=1e-10)
            if isinstance(action, Dispatch):
                np.testing.assert_allclose(
                    action.model.numpy(), server.send(action.client, event.now), rtol=0, atol=1e-10
                )
                assert action.work.steps in (None, server.steps(action.client)) or trains
        assert entry.version == server.version

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
            if ticket in due:
                continue
            if job.index == 0:
                factor = 1.0
            else:
                factor = draw.uniform(1.9, 2.1) if draw.random() < late else draw.uniform(0.9, 1.1)
            due[ticket] = job.started + (job.work.steps or 1) * SECONDS[job.client] * factor
        ticket = min(engine.ledger.open_jobs, key=lambda ticket: (due[ticket], ticket))
        if coming and min(coming.values()) < due[ticket]:
            client = min(coming, key=coming.__getitem__)
            engine.ready(client, at=max(coming.pop(client), engine.now))
            engine.advance()
            continue
        count = len(engine.ledger.open_jobs)
        engine.move(max(due[ticket], engine.now))
        if len(engine.ledger.open_jobs) != count:
            continue  # a timer started another job
        client = engine.ledger.open_jobs[ticket].client
        if draw.random() < lose:
            engine.lose(client)
        else:
            engine.arrive(client, None if trains else torch.tensor(draw.normal(size=8)))
        engine.advance()
    assert commits >= length


class RoundReference(Reference):
    """A server with rounds, which end when every selected client has answered or is lost."""

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
    """Return the mean weighted by the number of examples."""
    n = sum(EXAMPLES[client] for client in answers)
    total = np.zeros(8)
    for client, y in answers.items():
        total += EXAMPLES[client] / n * y
    return total
