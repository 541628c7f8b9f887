"""Fingerprints of a script's objects that are equal in every process: name, content and source code."""

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
LIBRARY_PACKAGES = {"torch", "offbeat", *sys.stdlib_module_names}  # their code is identified by versions


def to_json_value(value: object) -> Any:
    """Convert a value to what JSON returns after a round trip; other objects become descriptions."""
    return json.loads(json.dumps(value, default=describe_object, skipkeys=True))


def describe_object(value: object) -> str:
    """Describe an object without memory addresses."""
    if isinstance(value, Tensor):
        return f"tensor {tensor_digest(value)[:12]}"
    if isinstance(value, np.ndarray):
        sha = hashlib.sha256(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        return f"array {sha.hexdigest()[:12]}"
    if is_dataclass(value) and not isinstance(value, type):
        settings = {f.name: getattr(value, f.name) for f in fields(value)}
        written = [f"{key}={v if isinstance(v, PLAIN_TYPES) else to_json_value(v)}" for key, v in settings.items()]
        return f"{type(value).__qualname__}({', '.join(written)})"
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def content_digest(value: object) -> str:
    """Hash what a function, module or other object contains: arguments, settings, weights."""
    return hashlib.sha256(json.dumps(to_json_value(_list_content(value)), sort_keys=True).encode()).hexdigest()


def _list_content(value: object) -> list[object]:
    """List what an object contains; nested objects are lists, too."""
    if isinstance(value, nn.Module):
        return [describe_object(value), module_settings(value), weight_digests(value)]
    if isinstance(value, partial):
        return [_list_content(value.func), value.args, value.keywords]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, {f.name: _list_content(getattr(value, f.name)) for f in fields(value)}]
    if inspect.isfunction(value):
        cells: list[object] = []
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                cells.append(cell.cell_contents)
        return [describe_object(value), cells, value.__defaults__, value.__kwdefaults__]
    return [describe_object(value), getattr(value, "__dict__", {}) if not inspect.isroutine(value) else {}]


def module_settings(module: nn.Module) -> dict[str, object]:
    """Return plain attributes of a module and its parts that weights do not show, such as 0.3 in Net(drop=0.3)."""
    settings = {
        f"{path}.{key}" if path else key: value
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if not key.startswith("_") and key != "training" and _is_plain(value)
    }
    return dict(to_json_value(settings))


def _is_plain(value: object) -> bool:
    """Tell whether a value is a number, a text, None, or a list of these."""
    return isinstance(value, PLAIN_TYPES) or (isinstance(value, (tuple, list)) and all(map(_is_plain, value)))


def weight_digests(module: nn.Module) -> dict[str, str]:
    """Hash each tensor of a module."""
    return {key: tensor_digest(tensor) for key, tensor in module.state_dict().items()}


def code_digests(parts: Mapping[str, Iterable[object]]) -> dict[str, str]:
    """Hash the source code of user-defined classes and functions, where it is available."""
    digests = {}
    for part, definitions in parts.items():
        sources = []
        for definition in definitions:
            if (getattr(definition, "__module__", None) or "").split(".")[0] not in LIBRARY_PACKAGES:
                with contextlib.suppress(OSError, TypeError):  # defined at a prompt, or compiled
                    sources.append(inspect.getsource(definition))  # type: ignore[arg-type]
        if sources:
            digests[part] = hashlib.sha256("\n".join(sources).encode()).hexdigest()
    return digests
