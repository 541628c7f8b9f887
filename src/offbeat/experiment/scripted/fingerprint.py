"""What tells one object of a script from another in every process: its name, what it was made with, its code."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from offbeat.experiment.scripted.client_datasets import tensor_digest

PLAIN_TYPES = (bool, int, float, str, type(None))
LIBRARY_PACKAGES = {"torch", "offbeat", *sys.stdlib_module_names}  # whose code is a matter of versions


def to_json_value(value: Any) -> Any:
    """As JSON would give it back; what JSON does not have is told by name."""
    return json.loads(json.dumps(value, default=describe, skipkeys=True))


def describe(value: Any) -> str:
    """Of what is no plain value: nothing that has an address in it."""
    if isinstance(value, Tensor):
        return f"tensor {tensor_digest(value)[:12]}"
    if isinstance(value, np.ndarray):
        sha = hashlib.sha256(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        return f"array {sha.hexdigest()[:12]}"
    if is_dataclass(value) and not isinstance(value, type):
        held = ", ".join(f"{f.name}={_short(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__qualname__}({held})"
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def _short(value: Any) -> str:
    return str(value) if isinstance(value, PLAIN_TYPES) else str(to_json_value(value))


def content_digest(value: Any) -> str:
    """The SHA-256 of what a function, a module or another object holds: arguments, settings, weights."""
    return hashlib.sha256(json.dumps(to_json_value(_content(value)), sort_keys=True).encode()).hexdigest()


def _content(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return [describe(value), module_settings(value), weight_digests(value)]
    if isinstance(value, partial):
        return [_content(value.func), value.args, value.keywords]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, {f.name: _content(getattr(value, f.name)) for f in fields(value)}]
    if inspect.isfunction(value):
        cells = []
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty as yet
                cells.append(cell.cell_contents)
        return [describe(value), cells, value.__defaults__, value.__kwdefaults__]
    return [describe(value), getattr(value, "__dict__", {}) if not inspect.isroutine(value) else {}]


def module_settings(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of its parts, which its weights do not tell: the 0.3 of Net(drop=0.3)."""
    found: dict[str, Any] = {}
    for where, part in module.named_modules():
        for key, value in vars(part).items():
            if not key.startswith("_") and key != "training" and _is_plain(value):
                found[f"{where}.{key}" if where else key] = value
    made: dict[str, Any] = to_json_value(found)
    return made


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN_TYPES) or (isinstance(value, (tuple, list)) and all(map(_is_plain, value)))


def weight_digests(module: nn.Module) -> dict[str, str]:
    return {key: tensor_digest(tensor) for key, tensor in module.state_dict().items()}


def code_digests(whose: Mapping[str, Iterable[Any]]) -> dict[str, str]:
    """What of it is the user's own, and the SHA-256 of the text it was written in, where that can be had."""
    found = {}
    for what, written in whose.items():
        texts = []
        for one in written:
            if (getattr(one, "__module__", None) or "").split(".")[0] not in LIBRARY_PACKAGES:
                with contextlib.suppress(OSError, TypeError):  # typed at a prompt, or compiled
                    texts.append(inspect.getsource(one))
        if texts:
            found[what] = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return found
