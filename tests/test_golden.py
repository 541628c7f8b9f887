"""Compare event order, times and scripted float64 arithmetic of every strategy with golden traces, bit for bit.

A change that changes numbers on purpose records the traces again and says so in its change note:

    OFFBEAT_RECORD_GOLDEN=1 pytest tests/test_golden.py
"""

import ctypes
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.core.protocol import Commit, Dispatch
from offbeat.core.strategies import REGISTRY
from offbeat.testing import event_to_dict, play, tiny_world

FOLDER = Path(__file__).parent / "golden"
RECORD = bool(os.environ.get("OFFBEAT_RECORD_GOLDEN"))

# stale updates, simultaneous events, losses, a refusal, departures and returns, a newcomer
SCRIPT = """
wait 2
arrive 2
wait 1
arrive 0
arrive 1
wait 0.5
lose 0
wait 1
arrive 1
wait 0.25
arrive+leave 0
join
wait 2
refuse 0
arrive 1
wait 1
back 0
expire 0
wait 4
arrive 0
arrive 0
wait 1
lose+leave 1
wait 1
arrive 1
arrive 0
back 0
wait 8
arrive 2
wait 1
arrive 1
arrive 0
arrive 2
wait 1
arrive 0
"""

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "fedavg": {"all": {}, "deadline": {"sample": 2, "over_select": 0.5, "deadline": 3.0}},
    "fedprox": {"pulled": {"mu": 0.5}},
    "fedadam": {"all": {"lr": 0.125, "tau": 0.0625}},
    "fedavgm": {"all": {}, "deadline": {"mu": 0.5, "sample": 2, "over_select": 0.5, "deadline": 3.0}},
    "fedasync": {
        "mix": {},
        "delta": {"mode": "delta", "client_weight": "examples", "concurrency": 2, "max_staleness": 2},
    },
    "fedbuff": {"two": {"k": 2}, "excluded": {"k": 3, "exclude_buffered": True}},
    "local": {"alone": {}},
    "global": {"pooled": {}},
    "ca2fl": {"two": {"k": 2}, "limited": {"k": 3, "lr": 0.5, "concurrency": 2}},
    "fedfa": {"models": {"k": 3}, "deltas": {"k": 2, "queue": "deltas", "concurrency": 2}},
    "fedpac": {
        "all": {"lr": 0.125, "head_lr": 0.25},
        "deadline": {"lr": 0.125, "head_lr": 0.25, "head": "head", "sample": 2, "over_select": 0.5, "deadline": 3.0},
    },
    "gradma": {
        "default": {"lr_local": 0.125},
        "memory": {"lr_local": 0.125, "beta2": 0.5, "memory_num": 2, "sample": 2, "deadline": 3.0},
    },
    "fedat": {"two": {"tiers": 2}, "ratio": {"ratio": 1.5, "smooth": 1, "lam": 0.5, "deadline": 3.0, "retier": 2}},
    "safa": {"third": {}, "capped": {"lag": 1, "sample": 2, "cap": 2.0}},
    "mifa": {"rounds": {"lr": 0.125}, "ticks": {"lr": 0.125, "epoch": 1.5, "decay": True, "wait": "no_wait"}},
    "flanp": {"two": {}, "one": {"n0": 1, "max_rounds_per_stage": 2, "deadline": 3.0}},
    "orthofl": {
        "ma": {},
        "chain": {"reference": "chain", "first_alpha": 1.0, "concurrency": 2},
        "pairwise": {"projection": "pairwise"},
        "overwritten": {"moving_average": False, "max_staleness": 2},
    },
    "aso_fed": {
        "view": {"lr": 0.125},
        "literal": {"lr": 0.125, "beta": 0.5, "feature": "literal", "h_order": "alg2", "concurrency": 2},
    },
    "fedpsa": {
        "softmax": {"buffer": 2, "queue": 3, "gamma": 0.5, "delta": 0.1, "sketch": 4},
        "excluded": {
            "buffer": 3,
            "thermometer": False,
            "temperature": 0.2,
            "signal": "parameters",
            "exclude_buffered": True,
        },
    },
    "fed_ogd": {
        "mean": {"lr_local": 0.125, "lr_global": 0.0625},
        "sums": {
            "lr_local": 0.125,
            "lr_global": 0.0625,
            "epoch": 1.5,
            "combine": "sum_of_means",
            "project": "always",
            "concurrency": 2,
        },
        "uncached": {"lr_local": 0.125, "lr_global": 0.0625, "epoch": 2.0, "cache": False},
        "difference": {"lr_local": 0.125, "lr_global": 0.0625, "epoch": 2.0, "upload": "difference"},
    },
    "fedcompass": {
        "groups": {"q_min": 1, "q_max": 4},
        "momentum": {
            "q_min": 1,
            "q_max": 4,
            "momentum": True,
            "normalized": True,
            "weights": "equal",
            "discount": "aggregation",
        },
    },
}
CASES = [
    (name, label, settings) for name in REGISTRY for label, settings in SETTINGS.get(name, {"default": {}}).items()
]


def trace_of(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    engine = play(REGISTRY[name](**settings), SCRIPT, tiny_world(clients=3, buffers=True))
    versions = {id(engine.world.model): "version 0"}
    entries = []
    for entry in engine.log:
        version = entry.version - sum(isinstance(action, Commit) for action in entry.actions)
        actions = []
        for action in entry.actions:
            values = event_to_dict(action)
            if isinstance(action, Commit):
                version += 1
                versions[id(action.model)] = f"version {version}"
            elif isinstance(action, Dispatch):  # numbers only for models that were not committed
                values["model"] = versions.get(id(action.model), values["model"])
            actions.append(values)
        event = {
            key: value for key, value in event_to_dict(entry.event).items() if key != "base"
        }  # a Dispatch has shown it
        entries.append({"event": event, "actions": actions})
    # with another instruction set torch may fuse multiplication and addition, and BLAS may sum in another order on
    # another processor family: results are then equal within rounding, not in bits
    cpu = f"{torch.backends.cpu.get_cpu_capability()} {_processor_family()} {_blas_kernels()}".strip()
    return {"strategy": name, "settings": settings, "cpu": cpu, "version": engine.ledger.version, "trace": entries}


@pytest.mark.parametrize(("name", "label", "settings"), CASES, ids=[f"{name}-{label}" for name, label, _ in CASES])
def test_the_trace_equals_the_golden_one(name: str, label: str, settings: dict[str, Any]) -> None:
    path = FOLDER / f"{name}-{label}.json"
    trace = trace_of(name, settings)
    if RECORD:
        path.write_text(format_trace(trace))
    golden = json.loads(path.read_text())
    if golden["cpu"] == trace["cpu"]:
        assert first_difference(golden, trace) is None
    else:
        golden["cpu"] = trace["cpu"]
        assert first_difference(golden, trace, rounding=1e-12) is None


def test_every_strategy_has_its_golden_trace_and_every_trace_its_strategy() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(f"{name}-{label}" for name, label, _ in CASES)


def format_trace(trace: dict[str, Any]) -> str:
    """Format a trace with one event per line, so that a diff shows where a change begins."""
    *head, (_, entries) = trace.items()
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    return json.dumps(dict(head))[:-1] + ', "trace": [\n' + lines + "\n]}\n"


def first_difference(golden: Any, now: Any, rounding: float = 0.0, where: str = "") -> str | None:
    """Return the place and both values of the first difference, or None."""
    if isinstance(golden, dict) and isinstance(now, dict) and golden.keys() == now.keys():
        found = (first_difference(golden[key], now[key], rounding, f"{where}.{key}") for key in golden)
    elif isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        found = (
            first_difference(a, b, rounding, f"{where}[{i}]") for i, (a, b) in enumerate(zip(golden, now, strict=True))
        )
    elif isinstance(golden, float) and isinstance(now, float) and abs(golden - now) <= rounding * max(1.0, abs(golden)):
        return None
    else:
        return None if golden == now else f"{where}: was {golden}, is {now}"
    return next((difference for difference in found if difference is not None), None)


def test_a_difference_in_the_last_bit_is_detected() -> None:
    golden, now = {"a": [1.0, {"b": 0.1}]}, {"a": [1.0, {"b": 0.1 + 2**-56}]}
    assert first_difference(golden, now) == ".a[1].b: was 0.1, is 0.10000000000000002"
    assert first_difference(golden, now, rounding=1e-12) is None
    assert first_difference(golden, golden) is None


def _processor_family() -> str:
    """Return vendor and family of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return f"{info.get('vendor_id', platform.machine())} {info.get('cpu family', '')}".strip()


def _blas_kernels() -> str:
    """Return the processor for which numpy's OpenBLAS has chosen its kernels."""
    for library in (Path(np.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas*"):
        named = getattr(ctypes.CDLL(str(library)), "scipy_openblas_get_corename64_", None)
        if named is not None:
            named.restype = ctypes.c_char_p
            return str(named().decode())
    return os.environ.get("OPENBLAS_CORETYPE", "")
