"""What a script gives instead of an experiment file: its own model and tensors, perhaps strategies and losses of its
own. How it is built, what its folder tells of it, and whether a call is the one that made the folder.

simulation.json     the settings, digests of data, initial weights and code, in place of experiment.yaml
start.safetensors   the initial weights            data.safetensors    what clients hold, up to KEPT bytes of it
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, OffbeatError, RunError
from offbeat.core.protocol import LocalWork
from offbeat.core.threads import one_thread
from offbeat.engine.checkpoint import write_atomically
from offbeat.experiment import build
from offbeat.experiment.data_assignment import ClassCounts
from offbeat.experiment.run import checksums, identity
from offbeat.experiment.scripted import fingerprint
from offbeat.experiment.scripted.client_datasets import ClientDatasets, from_tensors
from offbeat.experiment.spec.choices import CHOICES
from offbeat.experiment.spec.config import Experiment, is_pooled
from offbeat.experiment.spec.serialization import experiment_from_values, to_values
from offbeat.training.evaluation import Evaluator
from offbeat.training.tasks import Loss, Task

RECORD_FILE, START_FILE, DATA_FILE = "simulation.json", "start.safetensors", "data.safetensors"
MAX_STORED_DATA = 64_000_000  # bytes of tensors that a folder keeps; of more it has the digests
CODE_SETTINGS = ("strategy", "delays", "network", "availability", "streaming")  # that a script may write itself
RETRY_HINT = "make the call as it was, or choose another out="


# ---------------------------------------------------------------- what stands for code in an experiment that is read


class Placeholder:
    """Stands in an experiment for what only its script can make: it can be told, not run."""

    def _elsewhere(self, *_: Any, **__: Any) -> Any:
        raise ConfigError(f"{type(self).__name__} is of a script: run that again (command.txt in the folder names it)")

    init = on_event = load = build = split = of = _elsewhere


def make_placeholder(name: str, settings: Mapping[str, Any] | None = None, pooled: bool = False) -> Any:
    """Told by its name and settings, as what it stands for is."""
    known = {key: value for key, value in (settings or {}).items() if key.isidentifier()}
    told = [(key, Any, _freeze(value)) for key, value in known.items()]
    name = name if name.isidentifier() else re.sub(r"\W", "", name) or "own"
    cls = make_dataclass(name, told, bases=(Placeholder,), namespace={"pooled": pooled}, frozen=True, kw_only=True)
    return cls()


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return make_placeholder(str(value.get("name", "settings")), {k: v for k, v in value.items() if k != "name"})
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


# ---------------------------------------------------------------- what was given


@dataclass(frozen=True, eq=False)
class ScriptedRun:
    experiment: Experiment
    module: nn.Module
    datasets: ClientDatasets
    loss: Task | Loss | None = None
    _initial_settings: dict[str, Any] = field(init=False, repr=False)  # before anything is trained: some modules count

    def __post_init__(self) -> None:
        loss = None if self.loss is None else fingerprint.content_digest(self.loss)
        object.__setattr__(
            self, "_made_with", {"settings": fingerprint.module_settings(self.module), "loss_settings": loss}
        )

    @one_thread()
    def setup(self, device: str = "cpu") -> build.Setup:
        one, holdings = self.experiment, self.datasets
        module = self.module if device == "cpu" else deepcopy(self.module).to(device)
        data = holdings.client_data(one.streaming, one.seed_of("partition"), device)
        x, y = holdings.evaluation_data()
        evaluator = Evaluator(module, x.to(device), y.to(device), self.loss)
        made = build.assemble(module, data, evaluator, one, self.loss, holdings.test_data(device))
        facts = {"evaluated": one.evaluate, **({"names": json.dumps(holdings.names)} if holdings.names else {})}
        return replace(made, facts={**made.facts, **facts})

    def class_counts(self) -> ClassCounts:
        """Who trains on what."""
        labels = [y for _, y in self.datasets.train.values()]
        clients = list(self.datasets.train)
        if any(y.is_floating_point() for y in labels):
            return ClassCounts(clients, torch.tensor([[len(y)] for y in labels]), self.datasets.names)
        classes = 1 + max(int(y.max()) for y in labels)
        counts = torch.stack([torch.bincount(y.flatten(), minlength=classes) for y in labels])
        return ClassCounts(clients, counts, self.datasets.names)

    @cached_property
    def record(self) -> dict[str, Any]:
        """All that makes this call this call, as plain data."""
        one = self.experiment
        chosen = {key: value for key, value in _field_values(one).items() if key in CHOICES}
        told = {
            "experiment": to_values(replace(one, **{key: _as_storable(value) for key, value in chosen.items()})),
            "scripted": [key for key, value in chosen.items() if _is_user_defined(value, key)],
            "pooled": is_pooled(one.strategy),
            "names": {str(client): name for client, name in self.datasets.names.items()},
            "model": repr(self.module),
            **self._initial_settings,
            "loss": None if self.loss is None else fingerprint.describe(self.loss),
            "start": hashlib.sha256(
                json.dumps(fingerprint.weight_digests(self.module), sort_keys=True).encode()
            ).hexdigest(),
            "code": fingerprint.code_digests(_user_code_parts(self)),
            "data": self.datasets.digests,
        }
        plain: dict[str, Any] = fingerprint.to_json_value(told)
        return plain

    def check_same_call(self, folder: Path) -> None:
        """Refuse a folder that another call made."""
        if found := list(differences(read_record(folder), self.record)):
            listed = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
            raise RunError(f"{folder} was made by another call: {listed}; {RETRY_HINT}")

    def write(self, folder: Path) -> None:
        """The record last: with it the folder is a run."""
        weights = {name: t.detach().cpu().clone().contiguous() for name, t in self.module.state_dict().items()}
        write_atomically(folder / START_FILE, save(weights))
        if self.datasets.num_bytes <= MAX_STORED_DATA:
            self._write_data(folder / DATA_FILE)
        write_atomically(folder / RECORD_FILE, checksums.dump_checksummed(self.record))

    def _write_data(self, path: Path) -> None:
        """Once for all the runs of a comparison, where the file system can."""
        for before in self.datasets.stored_files:
            with contextlib.suppress(OSError):
                os.link(before, path)
                return
        write_atomically(
            path, save({name: t.cpu().clone().contiguous() for name, t in self.datasets.tensors().items()})
        )
        self.datasets.stored_files.append(path)


def _field_values(experiment: Experiment) -> dict[str, Any]:
    return {f.name: getattr(experiment, f.name) for f in fields(experiment)}


def _is_user_defined(value: Any, setting: str) -> bool:
    """Can no file hold it? A class of a script's, or something that has one within."""
    if isinstance(value, tuple):
        return any(_is_user_defined(one, setting) for one in value)
    if type(value) not in CHOICES[setting].values():
        return True
    return _contains_user_defined(value)


def _contains_user_defined(value: Any) -> bool:
    if isinstance(value, LocalWork):
        return value.rule is not None or bool(value.extras)
    if not is_dataclass(value):
        return False
    held = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return any(
        _is_user_defined(v, k) if k in CHOICES and is_dataclass(v) else _contains_user_defined(v)
        for k, v in held.items()
    )


def _as_storable(value: Any) -> Any:
    """What is no dataclass is told by its attributes."""
    if isinstance(value, tuple):
        return tuple(map(_as_storable, value))
    if is_dataclass(value):
        return value
    own = fingerprint.to_json_value(getattr(value, "__dict__", {}))
    return make_placeholder(type(value).__name__, own, bool(getattr(value, "pooled", False)))


def _user_code_parts(given: ScriptedRun) -> dict[str, list[Any]]:
    """The classes and functions whose code may be the user's own."""
    one, loss = given.experiment, given.loss
    within = [getattr(loss, key) for key in ("func", "criterion") if hasattr(loss, key)]  # of a partial, of a task
    return {
        "model": sorted({type(part) for part in given.module.modules()}, key=lambda cls: cls.__qualname__),
        "loss": [] if loss is None else [loss if inspect.isroutine(loss) else type(loss), *within],
        **{key: list(type(getattr(one, key)).__mro__) for key in CODE_SETTINGS},
        "faults": [cls for fault in one.faults for cls in type(fault).__mro__],
    }


# ---------------------------------------------------------------- what a folder tells


def is_scripted(folder: Path) -> bool:
    return (folder / RECORD_FILE).is_file()


def read_record(folder: Path) -> dict[str, Any]:
    try:
        return checksums.read_checksummed(folder / RECORD_FILE)
    except FileNotFoundError:
        raise ConfigError(f"{folder} holds no simulation: it has no {RECORD_FILE}") from None


def experiment_of(folder: Path, stored: Mapping[str, Any] | None = None) -> Experiment:
    """As its call had it; what only the script can make is told by name and settings."""
    stored = read_record(folder) if stored is None else stored
    try:
        tree, pooled = dict(stored["experiment"]), bool(stored["pooled"])
        told = {key: tree.pop(key) for key in stored["scripted"]}
        parts = {key: _read_placeholders(value, pooled and key == "strategy") for key, value in told.items()}
        return replace(experiment_from_values(tree), **parts)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder / RECORD_FILE} is damaged: {type(error).__name__}: {error}") from None


def _read_placeholders(told: Any, pooled: bool) -> Any:
    if isinstance(told, list):
        return tuple(_read_placeholders(one, pooled) for one in told)
    return make_placeholder(told["name"], {key: value for key, value in told.items() if key != "name"}, pooled)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """In words, how one call is not the other."""
    yield from identity.setting_changes("", before["experiment"], now["experiment"])
    if before["names"] != now["names"]:
        yield f"the clients were {_list_names(before['names'])}, are {_list_names(now['names'])} now"
    others = {"model": "the model is another", "start": "its initial weights are others"}
    yield from (words for key, words in others.items() if before[key] != now[key])
    if before["model"] == now["model"] and "settings" in before:  # not in a folder from before these were kept
        yield from identity.setting_changes(
            "model", {"name": "", **before["settings"]}, {"name": "", **now["settings"]}
        )
    if any(key in before and before[key] != now[key] for key in ("loss", "loss_settings")):
        yield "the loss is another"
    for key in {**before["code"], **now["code"]}:
        if before["code"].get(key) != now["code"].get(key):
            yield f"the code of the {key} changed"
    data = [key for key in {**before["data"], **now["data"]} if before["data"].get(key) != now["data"].get(key)]
    whose = list(dict.fromkeys(key.rpartition(":")[0] for key in data))
    if whose:
        more = f" and of {len(whose) - 1} more" if len(whose) > 1 else ""
        yield f"the data of {_describe_data(whose[0], now['names'])}{more} changed"


def _describe_data(whose: str, names: Mapping[str, str]) -> str:
    before, _, number = whose.rpartition(" ")
    return f"{before} {names[number]!r}" if number in names else whose


def _list_names(names: Mapping[str, str]) -> str:
    few = list(names.values())[:4]
    return ", ".join(few) + (", …" if len(names) > 4 else "") if names else "numbered"


def stored_datasets(folder: Path, stored: Mapping[str, Any]) -> ClientDatasets | None:
    """What clients hold, where the folder keeps it."""
    path = folder / DATA_FILE
    if not path.is_file():
        return None
    names = {int(client): name for client, name in stored["names"].items()}
    return from_tensors(_load_tensors(path), names)


def with_initial_weights(folder: Path, module: nn.Module) -> nn.Module:
    """A copy of the module with the weights that the folder's run began with."""
    copy = deepcopy(module)
    try:
        copy.load_state_dict(_load_tensors(folder / START_FILE))
    except RuntimeError as error:
        why = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise ConfigError(f"the model does not take the weights of {folder / START_FILE}: {why}") from None
    return copy


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError, OffbeatError) as error:
        raise RunError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
