"""What a virtual run is, as plain data: the queue, timers, in-flight work, rule memory and the strategy's state.

Jobs in flight are kept as they are and computed again after a resume; results a worker computed ahead of time
are kept too, since not every worker repeats them bit for bit. A checkpoint is read into objects of its own, and an engine is
touched only when all of them are there.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor

from offbeat.core.errors import CheckpointError, RunError
from offbeat.core.jobs import Job, Result
from offbeat.core.snapshot import Get, Put, Tree, described, pack, pack_state, unpack, unpack_state
from offbeat.engines.clock import LOST, NOBODY, Clock, Due
from offbeat.engines.progress import Progress
from offbeat.engines.tally import Tally

if TYPE_CHECKING:
    from offbeat.engines.virtual import VirtualEngine

LEDGER = {"version": int, "next_ticket": int, "joined": dict, "absent": dict, "jobs": dict}


def tree_of(engine: VirtualEngine, put: Put) -> Tree:
    clock = engine.clock
    return {
        "strategy": repr(engine.strategy),
        "trace": engine.trace.seq,
        "rows": engine.trace.tally.plain(),
        "clock": {"now": clock.now, "orders": clock.orders, "live": clock.live, "at": clock.at, "heap": _columns(clock.heap, put)},
        "ledger": {name: pack(getattr(engine.ledger, name), put) for name in LEDGER},
        "open": [pack(job, put) for job in engine.ledger.open.values()],
        "progress": pack(engine.progress, put),
        "model": pack(engine.model, put),
        "memories": pack(engine.memories, put),
        "kept": pack(engine.traffic.kept, put),
        "verdicts": pack(engine.verdicts, put),
        "state": pack_state(engine.state, put),
    }


def _columns(heap: list[Due], put: Put) -> Tree:
    """A million clients are a million entries: as tensors they cost a tenth of what they cost as text."""
    return [pack(array(code, [due[i] for due in heap]), put) for i, code in enumerate("dqqq")]


@dataclass(frozen=True)
class Saved:
    """A checkpoint, read and found to be of this run."""

    seq: int
    tally: Tally
    clock: Clock
    ledger: Mapping[str, Any]
    open: list[Job]
    progress: Progress
    model: Tensor
    memories: dict[int, Mapping[str, Tensor]]
    kept: dict[int, Tensor]
    verdicts: dict[int, Result | str]
    state: Any


def read(engine: VirtualEngine, tree: Tree, get: Get) -> Saved:
    """A checkpoint of a run of this engine's, held against the trace. The engine stays as it is."""
    if not described(engine.strategy, tree["strategy"]):
        raise RunError(f"the checkpoint is of {tree['strategy']}, not of {engine.strategy!r}")
    seq = _of(int, tree["trace"], "trace")
    return Saved(
        seq=seq,
        clock=_clock(tree["clock"], get),
        ledger={name: _of(kind, unpack(tree["ledger"][name], get), name) for name, kind in LEDGER.items()},
        open=[_of(Job, unpack(saved, get), "open") for saved in _of(list, tree["open"], "open")],
        progress=_of(Progress, unpack(tree["progress"], get), "progress"),
        model=_like(engine.model, unpack(tree["model"], get)),
        memories=_of(dict, unpack(tree["memories"], get), "memories"),
        kept=_of(dict, unpack(tree["kept"], get), "kept"),
        verdicts=_of(dict, unpack(tree["verdicts"], get), "verdicts"),
        state=_state(engine, tree["state"], get),
        tally=engine.trace.check(seq, tree.get("rows")),
    )


def _of(kind: type, value: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise CheckpointError(f"it does not hold what it should: its {name} is a {type(value).__name__}")
    return value


def _like(model: Tensor, saved: Any) -> Tensor:
    if not isinstance(saved, Tensor) or saved.shape != model.shape or saved.dtype != model.dtype:
        raise CheckpointError("it does not hold what it should: its model has another shape")
    return saved


def _clock(saved: Tree, get: Get) -> Clock:
    heap, live = saved["heap"], saved["live"]
    if len(heap) != 4 or not isinstance(heap[0], dict):  # format 1: an entry each
        heap = list(zip(*heap, strict=True)) or [(), (), (), ()]
    times, kinds, who, tickets = (unpack(column, get) if isinstance(column, dict) else column for column in heap)
    entries = list(zip(map(float, times), map(int, kinds), map(int, who), map(int, tickets), strict=True))
    keys = {order: key for key, order in live.items()}
    return Clock(now=float(saved["now"]), heap=entries, orders=_of(int, saved["orders"], "orders"), live=live, keys=keys, at=saved["at"])


def _state(engine: VirtualEngine, saved: Tree, get: Get) -> Any:
    """Into a state of its own; a field the strategy has got since must have a default."""
    fresh = engine.strategy.init(engine.world)
    without_default = {f.name for f in fields(fresh) if f.default is MISSING and f.default_factory is MISSING}
    wanted = without_default & pack_state(fresh, lambda _: 0).keys()
    if not wanted <= saved.keys() <= {f.name for f in fields(fresh)}:
        raise CheckpointError(f"it does not hold what it should: its state has {', '.join(saved)}")
    return unpack_state(fresh, saved, get)


def fill(engine: VirtualEngine, saved: Saved) -> None:
    """Fill an engine that has not started with a saved run, and cut its trace back."""
    engine.clock, engine.progress, engine.model = saved.clock, saved.progress, saved.model
    engine.watched = {who: at for at, kind, who, ticket in saved.clock.heap if kind == LOST and ticket == NOBODY}
    for name, value in saved.ledger.items():
        setattr(engine.ledger, name, value)
    engine.memories, engine.traffic.kept, engine.verdicts, engine.state = saved.memories, saved.kept, saved.verdicts, saved.state
    for job in saved.open:
        engine.ledger.open[job.ticket] = job
        engine.ledger.busy[job.client] = job.ticket
    engine.trace.cut(saved.seq, saved.tally)
