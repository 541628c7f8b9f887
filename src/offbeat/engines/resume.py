"""What a virtual run is, as plain data: the queue, timers, in-flight work, rule memory and the strategy's state.

Jobs in flight are kept as they are and computed again after a resume; results a worker computed ahead of time
are kept too, since not every worker repeats them bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offbeat.core.errors import RunError
from offbeat.core.jobs import Job
from offbeat.core.snapshot import Get, Put, Tree, pack, pack_state, unpack, unpack_state
from offbeat.engines.clock import LOST, NOBODY, Clock

if TYPE_CHECKING:
    from offbeat.engines.virtual import VirtualEngine

LEDGER = ("version", "next_ticket", "joined", "absent", "jobs")


def tree_of(engine: VirtualEngine, put: Put) -> Tree:
    clock = engine.clock
    return {
        "strategy": repr(engine.strategy),
        "trace": engine.trace.seq,
        "clock": {"now": clock.now, "orders": clock.orders, "live": clock.live, "at": clock.at, "heap": clock.heap},
        "ledger": {name: pack(getattr(engine.ledger, name), put) for name in LEDGER},
        "open": [pack(job, put) for job in engine.ledger.open.values()],
        "progress": pack(engine.progress, put),
        "model": pack(engine.model, put),
        "memories": pack(engine.memories, put),
        "kept": pack(engine.traffic.kept, put),
        "verdicts": pack(engine.verdicts, put),
        "state": pack_state(engine.state, put),
    }


def fill(engine: VirtualEngine, tree: Tree, get: Get) -> None:
    """Fill an engine that has not started with a saved run."""
    if tree["strategy"] != repr(engine.strategy):
        raise RunError(f"the checkpoint is of {tree['strategy']}, not of {engine.strategy!r}")
    clock = tree["clock"]
    keys = {order: key for key, order in clock["live"].items()}
    heap = [(due[0], due[1], due[2], due[3]) for due in clock["heap"]]
    engine.watched = {who: at for at, kind, who, ticket in heap if kind == LOST and ticket == NOBODY}
    engine.clock = Clock(now=clock["now"], heap=heap, orders=clock["orders"], live=clock["live"], keys=keys, at=clock["at"])
    for name, value in tree["ledger"].items():
        setattr(engine.ledger, name, unpack(value, get))
    engine.progress = unpack(tree["progress"], get)
    engine.model = unpack(tree["model"], get)
    engine.memories = unpack(tree["memories"], get)
    engine.traffic.kept = unpack(tree["kept"], get)
    engine.verdicts = unpack(tree["verdicts"], get)
    engine.state = unpack_state(engine.state, tree["state"], get)
    for saved in tree["open"]:
        job: Job = unpack(saved, get)
        engine.ledger.open[job.ticket] = job
        engine.ledger.busy[job.client] = job.ticket
