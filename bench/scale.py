"""Measure how CPU time per event and memory grow with clients, clients at work, and parameters.

    python bench/scale.py                                  print a table
    python bench/scale.py --json scale.json --plot docs/images     and write the numbers and scale-*.png
    python bench/scale.py clients                          one of clients, at_work, parameters

One quantity varies at a time; each point runs in a new process. FedAsync without training, gate and trace on, clients
with daily availability. An exponent is the slope of a line through the logarithms: 0 means constant, 1 proportional. An
event on a heap of n entries costs O(log n), a slope near 0. The exponent of memory uses only the memory above that of
an empty process, at points where it is large enough.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measurement import describe_machine, peak_memory_mb, print_in_new_process, versions
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
MAX_BYTES = 2_000_000_000  # bytes that the updates of one point may move through memory; limits their number
MIN_GROWTH_MB = 20  # memory above that of an empty process from which on a point is used for the exponent


@dataclass(frozen=True)
class Point:
    """The setting of one measurement."""

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
    """Measure CPU microseconds per event, seconds until all clients have started, and peak memory of this process."""
    torch.set_num_threads(1)
    updates = max(20, min(events, MAX_BYTES // (4 * point.parameters)))
    before = peak_memory_mb()
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
        # an update adds two rows to the trace and a commit; a departure or a return adds one row
        costs.append((time.process_time() - began) / max(1, engine.trace.seq - first))
        engine.trace.close()
        del engine
    return {
        "event_us": 1e6 * statistics.median(costs),
        "start_s": statistics.median(starts),
        "peak_mb": peak_memory_mb(),
        "before_mb": before,
    }


def _engine(point: Point, updates: int) -> VirtualEngine:
    counts = ExampleCounts.constant(point.clients, 10)
    layout = Layout((Slice("w", (point.parameters,), 0, point.parameters, "param"),))
    world = World(model=torch.zeros(point.parameters), layout=layout, clients=counts)
    daily = Diurnal(begin=(0.0, 24.0))
    surroundings = SimulatedWorld(delays=Uniform(low=10.0, high=100.0), counts=counts, seed=0, availability=daily)
    return VirtualEngine(
        FedAsync(concurrency=point.at_work),
        world,
        surroundings,
        Inline(null_training),
        until=Until(updates=updates),
        trace=Trace(),
    )


def measure_in_new_process(point: Point, events: int, repeats: int) -> dict[str, float]:
    printed = print_in_new_process("scale", f"print(json.dumps(measure({point!r}, {events}, {repeats})))")
    return {**asdict(point), **json.loads(printed)}


def exponent(x: list[float], y: list[float]) -> float:
    """Fit the exponent b of y = a x^b."""
    return float(np.polyfit(np.log10(x), np.log10(y), 1)[0])


def sweep(axis: str, points: list[Point], events: int = EVENTS, repeats: int = REPEATS) -> dict[str, Any]:
    """Measure the points of one axis and fit the exponents."""
    rows = [measure_in_new_process(point, events, repeats) for point in points]
    x = [row[axis] for row in rows]
    growth = [row["peak_mb"] - rows[0]["before_mb"] for row in rows]
    large = [i for i, mb in enumerate(growth) if mb >= MIN_GROWTH_MB] or [0]
    bytes_each = (growth[-1] - growth[0]) * 2**20 / (x[-1] - x[0]) if len(rows) > 1 else 0.0
    return {
        "axis": axis,
        "rows": rows,
        "time_exponent": exponent(x, [row["event_us"] for row in rows]),
        "memory_exponent": exponent([x[i] for i in large], [growth[i] for i in large]) if len(large) > 1 else 0.0,
        "bytes_each": bytes_each,
    }


def print_table(result: dict[str, Any]) -> None:
    axis, rows = result["axis"], result["rows"]
    print(f"\n{axis:>12}  {'µs per event':>12}  {'start, s':>9}  {'peak, MB':>9}")
    for row in rows:
        print(f"{row[axis]:>12,}  {row['event_us']:>12.1f}  {row['start_s']:>9.2f}  {row['peak_mb']:>9.0f}")
    print(
        f"exponents: time {result['time_exponent']:.2f}, memory {result['memory_exponent']:.2f};"
        f" {result['bytes_each']:.0f} bytes per additional unit of {axis}"
    )


def plot(result: dict[str, Any], folder: Path) -> None:
    """Write the figure of one axis."""
    from matplotlib.figure import Figure

    axis, rows = result["axis"], result["rows"]
    x = [row[axis] for row in rows]
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    time_axis, memory_axis = figure.subplots(1, 2)
    time_axis.loglog(x, [row["event_us"] for row in rows], "o-")
    time_axis.set(xlabel=axis.replace("_", " "), ylabel="CPU µs per event", ylim=_decades(time_axis))
    time_axis.set_title(f"exponent {result['time_exponent']:.2f}", fontsize=9)
    memory_axis.loglog(x, [row["peak_mb"] for row in rows], "o-")
    memory_axis.set(xlabel=axis.replace("_", " "), ylabel="peak memory, MB", ylim=_decades(memory_axis))
    memory_axis.set_title(f"{result['bytes_each']:.0f} bytes per additional unit", fontsize=9)
    for each in (time_axis, memory_axis):
        each.grid(alpha=0.2)
    figure.savefig(folder / f"scale-{axis}.png", dpi=80)


def _decades(axis: Any) -> tuple[float, float]:
    """Return axis limits of at least two decades, so that noise does not look like growth."""
    low, high = (
        10.0 ** edge(np.log10(value)) for edge, value in zip((np.floor, np.ceil), axis.get_ylim(), strict=True)
    )
    return (low, high) if high / low > 10 else (low, 10 * high)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Measure growth with clients, clients at work, and parameters.")
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"{', '.join(AXES)} [default: all]")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write scale-AXIS.png into this folder")
    parser.add_argument("--events", type=int, default=EVENTS, help="largest number of updates per point")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args(arguments)
    if unknown := [axis for axis in options.axes if axis not in AXES]:
        parser.error(f"unknown axis {unknown[0]!r}; choose from {', '.join(AXES)}")
    machine = f"{describe_machine()}; {versions('torch')}"
    print(machine)
    results = []
    for axis in options.axes or AXES:
        results.append(sweep(axis, AXES[axis], options.events, options.repeats))
        print_table(results[-1])
        if options.plot is not None:
            plot(results[-1], options.plot)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine, "axes": results}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
