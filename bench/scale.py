"""How cost grows: CPU time of an event and memory, against the number of clients, how many of them are at work, and
parameters; one of the three at a time, each point in a process of its own.

    python bench/scale.py                                  a table
    python bench/scale.py --json scale.json --plot docs/images     and the numbers, and scale-*.png
    python bench/scale.py clients                          one of clients, at_work, parameters

FedAsync with null training, gate and trace on, clients who come and go with the day. An exponent is the slope of a
straight line through the logarithms: 0 is "does not grow", 1 "in proportion". An event on a heap of n entries costs
O(log n): a slope near 0. That of memory is of what was held beyond an empty process, where that is some megabytes.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import World
from offbeat.core.strategies import FedAsync
from offbeat.core.vector import Layout, Slice
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.scenario.availability import Diurnal
from offbeat.scenario.delays import Uniform
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.workers.inline import Inline

EVENTS, REPEATS = 20_000, 3
BYTES = 2_000_000_000  # that one point's updates may move through memory, or fewer of them are made

GROWN = 20  # MB of a point beyond an empty process from which on they tell anything


@dataclass(frozen=True)
class Point:
    clients: int = 10_000
    at_work: int = 100
    parameters: int = 10


AXES: dict[str, list[Point]] = {
    "clients": [Point(clients=10**n) for n in range(2, 7)],
    "at_work": [Point(at_work=n) for n in (1, 3, 10, 30, 100, 300, 1_000)],
    "parameters": [Point(clients=100, at_work=10, parameters=10**n) for n in range(3, 8)],
}


def null_training(job: Job) -> Result:
    return Result(job.ticket, job.base.clone(), job.num_examples, 1)


def measure(point: Point, events: int, repeats: int) -> dict[str, float]:
    """CPU microseconds an event once all have begun, the seconds before that, peak memory of this process."""
    torch.set_num_threads(1)
    updates = max(20, min(events, BYTES // (4 * point.parameters)))
    before = _peak()
    costs, starts = [], []
    for _ in range(repeats):
        began = time.process_time()
        engine = _engine(point, updates)
        ticket = engine.advance()
        starts.append(time.process_time() - began)
        first, began = engine.trace.seq, time.process_time()
        while ticket is not None:
            engine.provide(engine.worker.collect((ticket,)))
            ticket = engine.advance()
        # an update is two rows of the trace and a commit; whoever leaves or comes back is one
        costs.append((time.process_time() - began) / max(1, engine.trace.seq - first))
        engine.trace.close()
        del engine
    return {
        "event_us": 1e6 * statistics.median(costs),
        "start_s": statistics.median(starts),
        "peak_mb": _peak(),
        "before_mb": before,
    }


def _engine(point: Point, updates: int) -> VirtualEngine:
    counts = ExampleCounts.constant(point.clients, 10)
    layout = Layout((Slice("w", (point.parameters,), 0, point.parameters, "param"),))
    world = World(model=torch.zeros(point.parameters), layout=layout, clients=counts)
    there = Diurnal(begin=(0.0, 24.0))
    surroundings = SimulatedWorld(delays=Uniform(low=10.0, high=100.0), counts=counts, seed=0, availability=there)
    return VirtualEngine(
        FedAsync(concurrency=point.at_work),
        world,
        surroundings,
        Inline(null_training),
        until=Until(updates=updates),
        trace=Trace(),
    )


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fresh(point: Point, events: int, repeats: int) -> dict[str, float]:
    """The measurement in a process of its own."""
    code = (
        f"import sys, json; sys.path.insert(0, {str(Path(__file__).parent.resolve())!r}); import scale as s;"
        f" print(json.dumps(s.measure(s.Point(**{asdict(point)!r}), {events}, {repeats})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {**asdict(point), **json.loads(done.stdout)}


def slope(x: list[float], y: list[float]) -> float:
    """The exponent b of y = a x^b."""
    return float(np.polyfit(np.log10(x), np.log10(y), 1)[0])


def sweep(axis: str, points: list[Point], events: int = EVENTS, repeats: int = REPEATS) -> dict[str, object]:
    rows = [fresh(point, events, repeats) for point in points]
    x = [row[axis] for row in rows]
    held = [row["peak_mb"] - rows[0]["before_mb"] for row in rows]
    grown = [i for i, mb in enumerate(held) if mb >= GROWN] or [0]
    last = (held[-1] - held[0]) * 2**20 / (x[-1] - x[0]) if len(rows) > 1 else 0.0
    return {
        "axis": axis,
        "rows": rows,
        "time_exponent": slope(x, [row["event_us"] for row in rows]),
        "memory_exponent": slope([x[i] for i in grown], [held[i] for i in grown]) if len(grown) > 1 else 0.0,
        "bytes_each": last,
    }


def show(found: dict[str, object]) -> None:
    axis, rows = str(found["axis"]), found["rows"]
    print(f"\n{axis:>12}  {'µs an event':>12}  {'start, s':>9}  {'peak, MB':>9}")
    for row in rows:  # type: ignore[attr-defined]
        print(f"{row[axis]:>12,}  {row['event_us']:>12.1f}  {row['start_s']:>9.2f}  {row['peak_mb']:>9.0f}")
    print(
        f"exponents: time {found['time_exponent']:.2f}, memory {found['memory_exponent']:.2f};"
        f" {found['bytes_each']:.0f} bytes for one of {axis} more"
    )


def plot(found: dict[str, object], folder: Path) -> Path:
    from matplotlib.figure import Figure

    axis, rows = str(found["axis"]), found["rows"]
    x = [row[axis] for row in rows]  # type: ignore[attr-defined]
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    time_axis, memory_axis = figure.subplots(1, 2)
    time_axis.loglog(x, [row["event_us"] for row in rows], "o-")  # type: ignore[attr-defined]
    time_axis.set(xlabel=axis.replace("_", " "), ylabel="CPU µs an event", ylim=_decades(time_axis))
    time_axis.set_title(f"exponent {found['time_exponent']:.2f}", fontsize=9)
    memory_axis.loglog(x, [row["peak_mb"] for row in rows], "o-")  # type: ignore[attr-defined]
    memory_axis.set(xlabel=axis.replace("_", " "), ylabel="peak memory, MB", ylim=_decades(memory_axis))
    memory_axis.set_title(f"{found['bytes_each']:.0f} bytes for one more", fontsize=9)
    for each in (time_axis, memory_axis):
        each.grid(alpha=0.2)
    path = folder / f"scale-{axis}.png"
    figure.savefig(path, dpi=80)
    return path


def _decades(axis: Any) -> tuple[float, float]:
    """Two at least: noise should not look like growth."""
    low, high = (
        10.0 ** edge(np.log10(value)) for edge, value in zip((np.floor, np.ceil), axis.get_ylim(), strict=True)
    )
    return (low, high) if high / low > 10 else (low, 10 * high)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="How cost grows with clients, clients at work, and parameters.")
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"of {', '.join(AXES)} [default: all]")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write scale-AXIS.png into this folder")
    parser.add_argument("--events", type=int, default=EVENTS, help="updates a point, at most")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args(arguments)
    if wrong := [axis for axis in given.axes if axis not in AXES]:
        parser.error(f"unknown axis {wrong[0]!r}: one of {', '.join(AXES)}")
    machine = f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}, torch {torch.__version__}")
    results = []
    for axis in given.axes or AXES:
        results.append(sweep(axis, AXES[axis], given.events, given.repeats))
        show(results[-1])
        if given.plot is not None:
            plot(results[-1], given.plot)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "torch": torch.__version__, "axes": results}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
