"""Sites within one process, in a time of their own: a live engine whose every second is written in a script.

Waiting makes this time pass. Sites store what real ones store: their last answer, and the memory of the last answer
that was accepted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Strategy
from offbeat.core.strategies import FedAsync
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.live.journal import Journal
from offbeat.engine.live.live_engine import LiveEngine
from offbeat.engine.live.sites import SiteIds, Timeouts
from offbeat.engine.live.trace_replay import replay_trace
from offbeat.engine.live.transport import Farewell, Hello, JobAnswer, JobMessage, Question, Scores, SiteMessage
from offbeat.engine.trace import Trace
from offbeat.engine.until import parse_until
from offbeat.testing import TinyClients, tiny_world, with_probe

TIMEOUTS = Timeouts(first_answer=50.0, round_trip_factor=10.0, minimum=5.0, disconnected=20.0, final_scores=5.0)


class Killed(BaseException):
    """As if by SIGKILL: nothing that follows is done."""


@dataclass
class Site:
    """Takes `seconds` for a job; trains by `train`."""

    name: str
    seconds: float
    train: Callable[[Job], Result]
    num_examples: int = 10
    grows: int = 0  # examples more after each job
    tests: int = 0
    stored: Result | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    trained: int = 0
    farewell: Farewell | None = None

    def hello(self, address: int) -> Hello:
        return Hello(address, self.name, f"token of {self.name}", self.num_examples, "layout", "code")

    def work(self, order: JobMessage) -> Result:
        if self.stored is not None and self.stored.ticket == order.ticket:
            return self.stored
        if self.stored is not None and order.accepted == self.stored.ticket:
            self.memory = dict(self.stored.memory)
        self.trained += 1
        self.stored = self.train(order.to_job(self.memory))
        self.num_examples += self.grows
        return self.stored


@dataclass
class Sites:
    """A transport to sites, which are known by address."""

    sites: dict[int, Site]
    time: float = 0.0
    arriving: list[tuple[float, int, SiteMessage]] = field(default_factory=list)  # (when, order, message)
    order: Any = field(default_factory=count)
    sent: list[tuple[int, object]] = field(default_factory=list)
    kill_at: float | None = None

    def clock(self) -> float:
        return self.time

    def come(self, *addresses: int, at: float = 0.0) -> None:
        for address in addresses or self.sites:
            self.put(at, self.sites[address].hello(address))

    def put(self, at: float, message: SiteMessage) -> None:
        heappush(self.arriving, (at, next(self.order), message))

    def change_messages(self, change: Callable[[float, Any], SiteMessage | None]) -> None:
        """Change what sites send from now on; None is lost."""

        def put(at: float, message: SiteMessage, put: Any = self.put) -> None:
            if (changed := change(at, message)) is not None:
                put(at, changed)

        self.put = put  # type: ignore[method-assign]

    def change_answers(self, change: Callable[[float, JobAnswer], SiteMessage | None]) -> None:
        """Change the answers to jobs that sites send from now on; None is lost."""
        self.change_messages(lambda at, m: change(at, m) if isinstance(m, JobAnswer) else m)

    def refusals(self) -> dict[int, list[str]]:
        """Return the reasons for which each address was sent away."""
        reasons: dict[int, list[str]] = {}
        for address, order in self.sent:
            if isinstance(order, Farewell) and order.refused:
                reasons.setdefault(address, []).append(order.reason)
        return reasons

    def send(self, address: int, order: object) -> int:
        self.sent.append((address, order))
        site = self.sites[address]
        if isinstance(order, JobMessage):
            result = replace(site.work(order), memory={})
            returned = JobAnswer(address, result, site.num_examples, seconds=site.seconds / 2, size=100)
            self.put(self.time + site.seconds, returned)
        elif isinstance(order, Question):
            values = {"acc": float(order.model.sum())} if site.tests else {}
            self.put(self.time + 0.5, Scores(address, order.now, order.version, site.tests, values))
        elif isinstance(order, Farewell):
            site.farewell = order
        return 0

    def receive(self, timeout: float) -> list[SiteMessage]:
        due = self.time + max(timeout, 1e-9)  # time always passes
        if self.arriving and self.arriving[0][0] <= due:
            due = max(self.time, self.arriving[0][0])
        if self.kill_at is not None and due >= self.kill_at:
            raise Killed
        self.time = due
        messages = []
        while self.arriving and self.arriving[0][0] <= self.time:
            messages.append(heappop(self.arriving)[2])
        return messages

    def close(self) -> None:
        pass


class Federation:
    """A world without clients, sites at 100, 101, ... that take these seconds for a job, and engines that serve them.

    Site n has 10 (n + 1) examples. All sites join at 0 s.
    """

    def __init__(self, *seconds: float, strategy: Strategy | None = None, buffers: bool = False, **more: Any) -> None:
        self.strategy = strategy or FedAsync()
        self.world = with_probe(replace(tiny_world(0, seed=0, buffers=buffers), clients={}), self.strategy)
        self.train = TinyClients(self.world.layout, probe=self.world.probe)
        numbered = enumerate(seconds)
        self.sites = Sites(
            {100 + n: Site(f"site-{n}", s, self.train, num_examples=10 * (n + 1), **more) for n, s in numbered}
        )
        self.sites.come()

    def engine(self, until: str, **more: Any) -> LiveEngine:
        """Return an engine that stores nothing and starts when all sites joined."""
        settings = {"min_sites": len(self.sites.sites), "clock": self.sites.clock, **more}
        limits = parse_until(until)
        return LiveEngine(self.strategy, self.world, self.sites, until=limits, layout="layout", **settings)

    def stored(self, folder: Path, until: str, **more: Any) -> LiveEngine:
        """Return an engine that continues the run in this folder."""
        parts = {
            "trace": Trace(folder / "run.sqlite"),
            "journal": Journal(folder / "record"),
            "checkpoints": Checkpoints(folder / "checkpoint"),
            "site_ids": SiteIds.load(folder / "sites.json"),
        }
        engine = self.engine(until, **parts, **more)
        engine.restore()
        return engine

    def run_until_killed(self, engine: LiveEngine, at: float | None = None) -> None:
        """Run until the server is killed; what was not written and what was under way is lost."""
        self.sites.kill_at = at
        with pytest.raises(Killed):
            engine.run()
        engine.trace.db.close()
        self.sites.arriving.clear()
        self.sites.kill_at = None

    def replay(self, engine: LiveEngine, until: str) -> Coordinator:
        """Compute the run of an engine again from its trace."""
        train = TinyClients(self.world.layout, probe=self.world.probe)
        return replay_trace(engine.trace.db, self.strategy, self.world, train, parse_until(until))


def rows(engine: LiveEngine, query: str) -> list[Any]:
    return list(engine.trace.rows(query))


def times(engine: LiveEngine, kind: str, client: int | None = None) -> list[Any]:
    """Return (time, client) of each row of this kind, or the times of one client."""
    found = rows(engine, f"SELECT now, client FROM trace WHERE kind = '{kind}' ORDER BY seq")
    return found if client is None else [now for now, who in found if who == client]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
