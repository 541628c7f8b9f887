"""Runs that a script defines with its own model, tensors, and perhaps its own strategies and losses.

`ScriptedRun` builds such a run, describes it in the run folder and checks that a later call is the same. Files:

simulation.json     settings and digests of data, initial weights and code, in place of experiment.yaml
start.safetensors   the initial weights
data.safetensors    the clients' data, up to MAX_STORED_DATA bytes
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
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, OffbeatError, RunError
from offbeat.core.protocol import LocalWork
from offbeat.core.threads import one_thread
from offbeat.engine import write_atomically
from offbeat.experiment import build
from offbeat.experiment.data_assignment import ClassCounts
from offbeat.experiment.run import checksums, identity
from offbeat.experiment.run.checksums import JsonObject
from offbeat.experiment.scripted import fingerprint
from offbeat.experiment.scripted.client_datasets import ClientDatasets, from_tensors
from offbeat.experiment.spec.choices import CHOICES
from offbeat.experiment.spec.config import Experiment, is_pooled
from offbeat.experiment.spec.serialization import experiment_from_values, to_values
from offbeat.training import Evaluator, Loss, Task

RECORD_FILE, START_FILE, DATA_FILE = "simulation.json", "start.safetensors", "data.safetensors"
MAX_STORED_DATA = 64_000_000  # bytes of tensors that a folder stores; of larger data it stores digests
CODE_SETTINGS = ("strategy", "delays", "network", "availability", "streaming")  # may be classes of a script
RETRY_HINT = "make the call as it was, or choose another out="


class Placeholder:
    """Represent an object in a stored experiment that only a script can create; it can be shown but not run."""

    def _unavailable(self, *_: object, **__: object) -> NoReturn:
        """Raise an error that names the object and the command to rerun."""
        name = type(self).__name__
        raise ConfigError(f"{name} was defined in a script and cannot be rebuilt: rerun the command in command.txt")

    init = on_event = load = build = split = of = _unavailable


def make_placeholder(name: str, settings: Mapping[str, object] | None = None, pooled: bool = False) -> Any:
    """Create a placeholder with the class name and the settings of the object that it stands for."""
    fields_ = [(key, object, _to_frozen_value(value)) for key, value in (settings or {}).items() if key.isidentifier()]
    name = name if name.isidentifier() else re.sub(r"\W", "", name) or "own"
    cls = make_dataclass(name, fields_, bases=(Placeholder,), namespace={"pooled": pooled}, frozen=True, kw_only=True)
    return cls()


def _to_frozen_value(value: object) -> object:
    """Convert a JSON value to one that a frozen dataclass can hold: objects to placeholders, lists to tuples."""
    if isinstance(value, dict):
        return _placeholder_from_values({"name": "settings", **value})
    return tuple(map(_to_frozen_value, value)) if isinstance(value, list) else value


def _placeholder_from_values(values: JsonObject, pooled: bool = False) -> object:
    """Create a placeholder from stored settings, which include the name of the class."""
    settings = dict(values)
    return make_placeholder(str(settings.pop("name")), settings, pooled)


@dataclass(frozen=True, eq=False)
class ScriptedRun:
    """A run with the objects of a script: experiment, initial model, client data and loss."""

    experiment: Experiment
    module: nn.Module
    datasets: ClientDatasets
    loss: Task | Loss | None = None
    # computed before training, because some modules change while they are used
    _initial_settings: JsonObject = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compute what identifies the initial state of the module and the loss."""
        loss = None if self.loss is None else fingerprint.content_digest(self.loss)
        initial = {"settings": fingerprint.module_settings(self.module), "loss_settings": loss}
        object.__setattr__(self, "_initial_settings", initial)

    @one_thread()
    def setup(self, device: str = "cpu") -> build.Setup:
        """Build everything that a run needs, with tensors on that device."""
        experiment, datasets = self.experiment, self.datasets
        module = self.module if device == "cpu" else deepcopy(self.module).to(device)
        data = datasets.client_data(experiment.streaming, experiment.seed_of("partition"), device)
        x, y = datasets.evaluation_data()
        evaluator = Evaluator(module, x.to(device), y.to(device), self.loss)
        setup = build.assemble(module, data, evaluator, experiment, self.loss, datasets.test_data(device))
        names = {"names": json.dumps(datasets.names)} if datasets.names else {}
        return replace(setup, facts={**setup.facts, "evaluated": experiment.evaluate, **names})

    def class_counts(self) -> ClassCounts:
        """Count the training examples of each client by class."""
        labels = [y for _, y in self.datasets.train.values()]
        clients = list(self.datasets.train)
        if any(y.is_floating_point() for y in labels):
            return ClassCounts(clients, torch.tensor([[len(y)] for y in labels]), self.datasets.names)
        classes = 1 + max(int(y.max()) for y in labels)
        counts = torch.stack([torch.bincount(y.flatten(), minlength=classes) for y in labels])
        return ClassCounts(clients, counts, self.datasets.names)

    @cached_property
    def record(self) -> JsonObject:
        """Return everything that identifies the call, as JSON values."""
        experiment = self.experiment
        choices = {f.name: getattr(experiment, f.name) for f in fields(experiment) if f.name in CHOICES}
        storable = replace(experiment, **{key: _as_storable(value) for key, value in choices.items()})
        weights = json.dumps(fingerprint.weight_digests(self.module), sort_keys=True)
        record = {
            "experiment": to_values(storable),
            "scripted": [key for key, value in choices.items() if _is_user_defined(value, key)],
            "pooled": is_pooled(experiment.strategy),
            "names": {str(client): name for client, name in self.datasets.names.items()},
            "model": repr(self.module),
            **self._initial_settings,
            "loss": None if self.loss is None else fingerprint.describe_object(self.loss),
            "start": hashlib.sha256(weights.encode()).hexdigest(),
            "code": fingerprint.code_digests(self._user_code_parts()),
            "data": self.datasets.digests,
        }
        return dict(fingerprint.to_json_value(record))

    def _user_code_parts(self) -> dict[str, list[object]]:
        """Return the classes and functions of each part that may be the user's own."""
        experiment, loss = self.experiment, self.loss
        loss_parts = [getattr(loss, key) for key in ("func", "criterion") if hasattr(loss, key)]  # partial, or task
        return {
            "model": sorted({type(part) for part in self.module.modules()}, key=lambda cls: cls.__qualname__),
            "loss": [] if loss is None else [loss if inspect.isroutine(loss) else type(loss), *loss_parts],
            **{key: list(type(getattr(experiment, key)).__mro__) for key in CODE_SETTINGS},
            "faults": [cls for fault in experiment.faults for cls in type(fault).__mro__],
        }

    def check_same_call(self, folder: Path) -> None:
        """Reject a folder that a different call created."""
        if changes := list(differences(read_record(folder), self.record)):
            raise RunError(f"{folder} was made by another call: {identity.list_changes(changes)}; {RETRY_HINT}")

    def write(self, folder: Path) -> None:
        """Write the files of the call; the record is last and marks the folder as a run."""
        weights = {name: t.detach().cpu().clone().contiguous() for name, t in self.module.state_dict().items()}
        write_atomically(folder / START_FILE, save(weights))
        if self.datasets.num_bytes <= MAX_STORED_DATA:
            self._link_or_write_data(folder / DATA_FILE)
        write_atomically(folder / RECORD_FILE, checksums.dump_checksummed(self.record))

    def _link_or_write_data(self, path: Path) -> None:
        """Write the data once for all runs of a comparison, if the file system supports hard links."""
        for earlier in self.datasets.stored_files:
            with contextlib.suppress(OSError):
                os.link(earlier, path)
                return
        tensors = {name: t.cpu().clone().contiguous() for name, t in self.datasets.tensors().items()}
        write_atomically(path, save(tensors))
        self.datasets.stored_files.append(path)


def _is_user_defined(value: object, setting: str) -> bool:
    """Tell whether a choice is an instance of a class of the script, or contains one."""
    if isinstance(value, tuple):
        return any(_is_user_defined(item, setting) for item in value)
    return type(value) not in CHOICES[setting].values() or _contains_user_defined(value)


def _contains_user_defined(value: object) -> bool:
    """Tell whether a setting of a choice is an instance of a class of the script."""
    if isinstance(value, LocalWork):
        return value.rule is not None or bool(value.extras)
    if not is_dataclass(value):
        return False
    values = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return any(
        _is_user_defined(v, k) if k in CHOICES and is_dataclass(v) else _contains_user_defined(v)
        for k, v in values.items()
    )


def _as_storable(value: object) -> Any:
    """Replace objects that are no dataclasses by placeholders with their attributes."""
    if isinstance(value, tuple):
        return tuple(map(_as_storable, value))
    if is_dataclass(value):
        return value
    attributes = fingerprint.to_json_value(getattr(value, "__dict__", {}))
    return make_placeholder(type(value).__name__, attributes, bool(getattr(value, "pooled", False)))


# ---------------------------------------------------------------- reading a folder


def is_scripted(folder: Path) -> bool:
    """Tell whether a folder holds a run of a script."""
    return (folder / RECORD_FILE).is_file()


def read_record(folder: Path) -> JsonObject:
    """Read simulation.json of a run folder."""
    try:
        return checksums.read_checksummed(folder / RECORD_FILE)
    except FileNotFoundError:
        raise ConfigError(f"{folder} holds no simulation: it has no {RECORD_FILE}") from None


def experiment_of(folder: Path, record: JsonObject | None = None) -> Experiment:
    """Read the experiment of a scripted run, with placeholders for objects that only the script can create."""
    record = read_record(folder) if record is None else record
    try:
        values, pooled = dict(record["experiment"]), bool(record["pooled"])
        scripted = {key: values.pop(key) for key in record["scripted"]}
        parts: dict[str, Any] = {}
        for key, value in scripted.items():
            if isinstance(value, list):
                parts[key] = tuple(map(_placeholder_from_values, value))
            else:
                parts[key] = _placeholder_from_values(value, pooled and key == "strategy")
        return replace(experiment_from_values(values), **parts)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder / RECORD_FILE} is damaged: {type(error).__name__}: {error}") from None


def differences(before: JsonObject, now: JsonObject) -> Iterator[str]:
    """Yield a phrase for each difference between the records of two calls."""
    yield from identity.setting_changes("", before["experiment"], now["experiment"])
    if before["names"] != now["names"]:
        yield f"the clients were {_list_names(before['names'])}, are {_list_names(now['names'])} now"
    phrases = {"model": "the model is different", "start": "its initial weights are different"}
    yield from (phrase for key, phrase in phrases.items() if before[key] != now[key])
    if before["model"] == now["model"]:
        yield from identity.setting_changes("model", before["settings"], now["settings"])
    if any(before[key] != now[key] for key in ("loss", "loss_settings")):
        yield "the loss is different"
    for key in {**before["code"], **now["code"]}:
        if before["code"].get(key) != now["code"].get(key):
            yield f"the code of the {key} changed"
    tensors = {**before["data"], **now["data"]}
    changed = [key for key in tensors if before["data"].get(key) != now["data"].get(key)]
    owners = list(dict.fromkeys(key.rpartition(":")[0] for key in changed))
    if owners:
        prefix, _, number = owners[0].rpartition(" ")  # of "client 3", "test of client 3" or "test"
        first = f"{prefix} {now['names'][number]!r}" if number in now["names"] else owners[0]
        more = f" and of {len(owners) - 1} more" if len(owners) > 1 else ""
        yield f"the data of {first}{more} changed"


def _list_names(names: Mapping[str, str]) -> str:
    """List the names of the first clients; "numbered" if the clients have no names."""
    return ", ".join([*list(names.values())[:4], *(["…"] if len(names) > 4 else [])]) or "numbered"


def stored_datasets(folder: Path, record: JsonObject) -> ClientDatasets | None:
    """Read the clients' data, or return None if the folder holds only digests of it."""
    path = folder / DATA_FILE
    if not path.is_file():
        return None
    names = {int(client): name for client, name in record["names"].items()}
    return from_tensors(_load_tensors(path), names)


def with_initial_weights(folder: Path, module: nn.Module) -> nn.Module:
    """Return a copy of the module with the initial weights of the run in the folder."""
    copy = deepcopy(module)
    try:
        copy.load_state_dict(_load_tensors(folder / START_FILE))
    except RuntimeError as error:
        reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise ConfigError(f"the model does not fit the weights in {folder / START_FILE}: {reason}") from None
    return copy


def _load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of tensors; raise RunError if that fails."""
    try:
        return load_file(path)
    except (OSError, SafetensorError, OffbeatError) as error:
        raise RunError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
