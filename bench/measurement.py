"""Timing, ratios and descriptions of the machine that all benchmarks share."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from pathlib import Path

import torch

MAX_VALUES_WITH_RANGE = 20  # more values are summarized by an interval of the median, because one is always far off
CPU_CLOCK_RESOLUTION = 0.01  # seconds; os.times() is no finer

# ---------------------------------------------------------------- the machine


def describe_machine() -> str:
    """Describe processor, cores, memory and GPU in one line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return f"{processor()}, {cores} cores, {memory:.0f} GiB of memory, GPU {gpu}"


def processor() -> str:
    """Return the processor model if the system reports it, otherwise the architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(*packages: str) -> str:
    """List the versions of Python and of these packages."""
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {package_version(name)}" for name in packages)


def package_version(package: str) -> str:
    """Return the installed version; "source tree" for an importable package that is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "source tree" if find_spec(package) else "none"


def today() -> str:
    """Return the current date in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def print_in_new_process(script: str, expression: str) -> str:
    """Evaluate an expression of a benchmark script in a new process and return what it prints.

    The process runs in an empty folder. The names of the script are available in the expression.
    """
    bench = str(Path(__file__).parent.resolve())
    code = f"import sys; sys.path.insert(0, {bench!r}); from {script} import *; {expression}"
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()


# ---------------------------------------------------------------- time


def cpu_seconds(work: Callable[[], object]) -> float:
    """Measure the CPU time of a call in this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def wall_seconds(work: Callable[[], object]) -> float:
    """Measure the wall time of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def wall_and_cpu_seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Measure wall time, and CPU time of this process and of all child processes that ended meanwhile."""
    before = os.times()
    wall = wall_seconds(work)
    after = os.times()
    return wall, max(CPU_CLOCK_RESOLUTION, sum(after[:4]) - sum(before[:4]))


def time_ratios(
    contenders: Mapping[str, Callable[[], object]], reference: Callable[[], object], rounds: int
) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """Run the reference and every contender once per round.

    Returns, for each contender and round, wall time and CPU time over those of the reference in the same round; and the
    shortest wall time of the reference.
    """
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    shortest = inf
    for _ in range(rounds):
        reference_wall, reference_cpu = wall_and_cpu_seconds(reference)
        shortest = min(shortest, reference_wall)
        for name, work in contenders.items():
            wall, cpu = wall_and_cpu_seconds(work)
            ratios[name].append((wall / reference_wall, cpu / reference_cpu))
    return ratios, shortest


# ---------------------------------------------------------------- statistics


def format_median(values: Sequence[float]) -> str:
    """Format the median with the range, or with its 95 % interval if there are many values."""
    many = len(values) > MAX_VALUES_WITH_RANGE
    low, high = median_interval(values) if many else (min(values), max(values))
    middle = statistics.median(values)
    n = decimals(middle)
    return f"{middle:.{n}f} (median of {len(values)}, {'95 % interval ' if many else ''}{low:.{n}f} to {high:.{n}f})"


def decimals(value: float) -> int:
    """Return the number of decimals with which a ratio is printed."""
    return 3 if value < 10 else 1


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a distribution-free 95 % interval of the median: ranks n/2 -+ 0.98 sqrt(n)."""
    ranked = sorted(values)
    half = 0.98 * len(ranked) ** 0.5
    low, high = int(len(ranked) / 2 - half), int(len(ranked) / 2 + half)
    return ranked[max(low, 0)], ranked[min(high, len(ranked) - 1)]
