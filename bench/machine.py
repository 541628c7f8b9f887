"""Where and with what was measured: the lines that stand above figures."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return f"{processor()}, {cores} cores, {memory:.0f} GiB of memory, GPU {gpu}"


def processor() -> str:
    """The model, where the system tells it."""
    told = Path("/proc/cpuinfo")
    for line in told.read_text().splitlines() if told.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(*packages: str) -> str:
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {known(name)}" for name in packages)


def known(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "as here" if find_spec(package) else "none"  # run from its sources, or not there


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"
