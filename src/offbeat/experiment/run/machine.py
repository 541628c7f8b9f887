"""What a run is made with: versions and machine. Another one gives the same result, but not always the same bits."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from offbeat.core.errors import RunError
from offbeat.experiment import checksummed_json

PACKAGES = ("offbeat", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


def environment(device: str = "cpu") -> dict[str, Any]:
    """`device`: what trains. A GPU is asked for its name only where it is used: asking takes hold of it."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    gpu = {"gpu": torch.cuda.get_device_name()} if device != "cpu" and torch.cuda.is_available() else {}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        **gpu,
        "packages": versions,
    }


def moved(path: Path) -> str | None:
    """In words, how this is not what a run began on; None if it is, or where that is not known."""
    try:
        before, now = _decisive(checksummed_json.read(path)), _decisive(environment())
    except FileNotFoundError:
        return None
    except RunError as error:
        return f"{error}: whether it began on this machine cannot be stored, and bits may differ"
    changed = [name for name in before if name in now and before[name] != now[name]]
    if not changed:
        return None
    stored = ", ".join(f"{name} {before[name]}" for name in changed)
    return f"it began with {stored}; here it is {', '.join(str(now[name]) for name in changed)}: bits may differ"


def _decisive(stored: dict[str, Any]) -> dict[str, str]:
    """What decides about the last bits."""
    packages = stored.get("packages")
    found = {"torch": packages.get("torch"), "numpy": packages.get("numpy")} if isinstance(packages, dict) else {}
    found |= {name: stored.get(name) for name in ("platform", "cpu")}
    return {name: str(value) for name, value in found.items() if value is not None}
