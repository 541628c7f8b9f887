"""Sites within one process, in a time of their own: a live engine whose every second is written in a script.

Waiting is what makes this time pass. Sites keep what real ones keep: an outbox with their last answer, and the memory
of the last answer that was accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Strategy, World
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.live.journal import Journal
from offbeat.engine.live.live_engine import LiveEngine
from offbeat.engine.live.sites import SiteIds, Timeouts
from offbeat.engine.live.transport import Farewell, Hello, JobAnswer, JobMessage, Question, Scores, SiteMessage
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.testing import TinyClients, tiny_world, with_probe

SEED = 0


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
    outbox: Result | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    trained: int = 0
    farewell: Farewell | None = None

    def hello(self, address: int) -> Hello:
        return Hello(address, self.name, f"token of {self.name}", self.num_examples, "layout", "code")

    def work(self, order: JobMessage) -> Result:
        if self.outbox is not None and self.outbox.ticket == order.ticket:
            return self.outbox
        if self.outbox is not None and order.accepted == self.outbox.ticket:
            self.memory = dict(self.outbox.memory)
        job = Job(
            order.ticket,
            order.client,
            order.index,
            order.base,
            order.base_version,
            order.work,
            order.num_examples,
            self.memory,
            order.seed,
        )
        self.trained += 1
        self.outbox = self.train(job)
        self.num_examples += self.grows
        return self.outbox


@dataclass
class Sites:
    """A transport to them. `arriving` is what is under way: (when, order, what)."""

    sites: dict[int, Site]  # by address
    time: float = 0.0
    arriving: list[tuple[float, int, SiteMessage]] = field(default_factory=list)
    order: Any = field(default_factory=count)
    sent: list[tuple[int, object]] = field(default_factory=list)
    kill_at: float | None = None

    def clock(self) -> float:
        return self.time

    def come(self, *addresses: int, at: float = 0.0) -> None:
        for address in addresses or self.sites:
            self.put(at, self.sites[address].hello(address))

    def put(self, at: float, heard: SiteMessage) -> None:
        heappush(self.arriving, (at, next(self.order), heard))

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
        heard = []
        while self.arriving and self.arriving[0][0] <= self.time:
            heard.append(heappop(self.arriving)[2])
        return heard

    def close(self) -> None:
        pass


def nobody_yet(strategy: Strategy, buffers: bool = False) -> World:
    """A live world: whoever joins is new."""
    return with_probe(replace(tiny_world(0, seed=SEED, buffers=buffers), clients={}), strategy)


def sites_of(world: World, *seconds: float, **more: Any) -> Sites:
    train = TinyClients(world.layout, probe=world.probe)
    made = {100 + n: Site(f"site-{n}", s, train, num_examples=10 * (n + 1), **more) for n, s in enumerate(seconds)}
    sites = Sites(made)
    sites.come()
    return sites


def live(strategy: Strategy, world: World, sites: Sites, until: str = "40updates", **more: Any) -> LiveEngine:
    from offbeat.engine.until import parse_until

    more.setdefault("min_sites", len(sites.sites))
    limit = until if isinstance(until, Until) else parse_until(until)
    return LiveEngine(strategy, world, sites, until=limit, layout="layout", clock=sites.clock, **more)


def stored(strategy: Strategy, world: World, sites: Sites, folder: Path, **more: Any) -> LiveEngine:
    """The same, in a folder, as far as it has come."""
    made = {
        "trace": Trace(folder / "run.sqlite"),
        "journal": Journal(folder / "record", full=more.pop("full", False)),
        "checkpoints": Checkpoints(folder / "checkpoint"),
        "site_ids": SiteIds.load(folder / "sites.json"),
    }
    engine = live(strategy, world, sites, **made, **more)
    engine.restore()
    return engine


TIMEOUTS = Timeouts(first_answer=50.0, round_trip_factor=10.0, minimum=5.0, disconnected=20.0, final_scores=5.0)
