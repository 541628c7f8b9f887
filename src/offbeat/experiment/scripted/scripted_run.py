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
from offbeat.engine.checkpoint import write_whole
from offbeat.experiment import build, checksummed_json
from offbeat.experiment.partition_heatmap import Held
from offbeat.experiment.run import identity
from offbeat.experiment.scripted import fingerprint
from offbeat.experiment.scripted.client_datasets import Holdings, restored
from offbeat.experiment.spec.choices import CHOICES
from offbeat.experiment.spec.config import Experiment, is_pooled
from offbeat.experiment.spec.serialization import from_plain, to_plain
from offbeat.training.evaluation import Evaluator
from offbeat.training.tasks import Loss, Task

RECORD, START, DATA = "simulation.json", "start.safetensors", "data.safetensors"
KEPT = 64_000_000  # bytes of tensors that a folder keeps; of more it has the digests
LAWS = ("strategy", "delays", "network", "availability", "streaming")  # that a script may write itself
AGAIN = "make the call as it was, or choose another out="


# ---------------------------------------------------------------- what stands for code in an experiment that is read


class Scripted:
    """Stands in an experiment for what only its script can make: it can be told, not run."""

    def _elsewhere(self, *_: Any, **__: Any) -> Any:
        raise ConfigError(f"{type(self).__name__} is of a script: run that again (command.txt in the folder names it)")

    init = on_event = load = build = split = of = _elsewhere


def stand_in(name: str, settings: Mapping[str, Any] | None = None, pooled: bool = False) -> Any:
    """Told by its name and settings, as what it stands for is."""
    known = {key: value for key, value in (settings or {}).items() if key.isidentifier()}
    told = [(key, Any, _frozen(value)) for key, value in known.items()]
    name = name if name.isidentifier() else re.sub(r"\W", "", name) or "own"
    cls = make_dataclass(name, told, bases=(Scripted,), namespace={"pooled": pooled}, frozen=True, kw_only=True)
    return cls()


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return stand_in(str(value.get("name", "settings")), {k: v for k, v in value.items() if k != "name"})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# ---------------------------------------------------------------- what was given


@dataclass(frozen=True, eq=False)
class Given:
    experiment: Experiment
    module: nn.Module
    holdings: Holdings
    loss: Task | Loss | None = None
    _made_with: dict[str, Any] = field(init=False, repr=False)  # before anything is trained: some modules count

    def __post_init__(self) -> None:
        loss = None if self.loss is None else fingerprint.made_with(self.loss)
        object.__setattr__(self, "_made_with", {"settings": fingerprint.settings(self.module), "loss_settings": loss})

    @one_thread()
    def setup(self, device: str = "cpu") -> build.Setup:
        one, holdings = self.experiment, self.holdings
        module = self.module if device == "cpu" else deepcopy(self.module).to(device)
        data = holdings.clients(one.streaming, one.seed_of("partition"), device)
        x, y = holdings.evaluated()
        evaluator = Evaluator(module, x.to(device), y.to(device), self.loss)
        made = build.assemble(module, data, evaluator, one, self.loss, holdings.held_out(device))
        facts = {"evaluated": one.evaluate, **({"names": json.dumps(holdings.names)} if holdings.names else {})}
        return replace(made, facts={**made.facts, **facts})

    def held(self) -> Held:
        """Who trains on what."""
        labels = [y for _, y in self.holdings.train.values()]
        clients = list(self.holdings.train)
        if any(y.is_floating_point() for y in labels):
            return Held(clients, torch.tensor([[len(y)] for y in labels]), self.holdings.names)
        classes = 1 + max(int(y.max()) for y in labels)
        counts = torch.stack([torch.bincount(y.flatten(), minlength=classes) for y in labels])
        return Held(clients, counts, self.holdings.names)

    @cached_property
    def record(self) -> dict[str, Any]:
        """All that makes this call this call, as plain data."""
        one = self.experiment
        chosen = {key: value for key, value in _values(one).items() if key in CHOICES}
        told = {
            "experiment": to_plain(replace(one, **{key: _told(value) for key, value in chosen.items()})),
            "scripted": [key for key, value in chosen.items() if _is_own(value, key)],
            "pooled": is_pooled(one.strategy),
            "names": {str(client): name for client, name in self.holdings.names.items()},
            "model": repr(self.module),
            **self._made_with,
            "loss": None if self.loss is None else fingerprint.name(self.loss),
            "start": hashlib.sha256(json.dumps(fingerprint.weights(self.module), sort_keys=True).encode()).hexdigest(),
            "code": fingerprint.code(_written(self)),
            "data": self.holdings.digests,
        }
        plain: dict[str, Any] = fingerprint.plain(told)
        return plain

    def check(self, folder: Path) -> None:
        """Refuse a folder that another call made."""
        if found := list(differences(read(folder), self.record)):
            listed = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
            raise RunError(f"{folder} was made by another call: {listed}; {AGAIN}")

    def write(self, folder: Path) -> None:
        """The record last: with it the folder is a run."""
        weights = {name: t.detach().cpu().clone().contiguous() for name, t in self.module.state_dict().items()}
        write_whole(folder / START, save(weights))
        if self.holdings.size <= KEPT:
            self._keep_data(folder / DATA)
        write_whole(folder / RECORD, checksummed_json.dump(self.record))

    def _keep_data(self, path: Path) -> None:
        """Once for all the runs of a comparison, where the file system can."""
        for before in self.holdings.kept:
            with contextlib.suppress(OSError):
                os.link(before, path)
                return
        write_whole(path, save({name: t.cpu().clone().contiguous() for name, t in self.holdings.tensors().items()}))
        self.holdings.kept.append(path)


def _values(experiment: Experiment) -> dict[str, Any]:
    return {f.name: getattr(experiment, f.name) for f in fields(experiment)}


def _is_own(value: Any, setting: str) -> bool:
    """Can no file hold it? A class of a script's, or something that has one within."""
    if isinstance(value, tuple):
        return any(_is_own(one, setting) for one in value)
    if type(value) not in CHOICES[setting].values():
        return True
    return _holds_own(value)


def _holds_own(value: Any) -> bool:
    if isinstance(value, LocalWork):
        return value.rule is not None or bool(value.extras)
    if not is_dataclass(value):
        return False
    held = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return any(_is_own(v, k) if k in CHOICES and is_dataclass(v) else _holds_own(v) for k, v in held.items())


def _told(value: Any) -> Any:
    """What is no dataclass is told by its attributes."""
    if isinstance(value, tuple):
        return tuple(map(_told, value))
    if is_dataclass(value):
        return value
    own = fingerprint.plain(getattr(value, "__dict__", {}))
    return stand_in(type(value).__name__, own, bool(getattr(value, "pooled", False)))


def _written(given: Given) -> dict[str, list[Any]]:
    """The classes and functions whose code may be the user's own."""
    one, loss = given.experiment, given.loss
    within = [getattr(loss, key) for key in ("func", "criterion") if hasattr(loss, key)]  # of a partial, of a task
    return {
        "model": sorted({type(part) for part in given.module.modules()}, key=lambda cls: cls.__qualname__),
        "loss": [] if loss is None else [loss if inspect.isroutine(loss) else type(loss), *within],
        **{key: list(type(getattr(one, key)).__mro__) for key in LAWS},
        "faults": [cls for fault in one.faults for cls in type(fault).__mro__],
    }


# ---------------------------------------------------------------- what a folder tells


def is_scripted(folder: Path) -> bool:
    return (folder / RECORD).is_file()


def read(folder: Path) -> dict[str, Any]:
    try:
        return checksummed_json.read(folder / RECORD)
    except FileNotFoundError:
        raise ConfigError(f"{folder} holds no simulation: it has no {RECORD}") from None


def experiment_of(folder: Path, stored: Mapping[str, Any] | None = None) -> Experiment:
    """As its call had it; what only the script can make is told by name and settings."""
    stored = read(folder) if stored is None else stored
    try:
        tree, pooled = dict(stored["experiment"]), bool(stored["pooled"])
        told = {key: tree.pop(key) for key in stored["scripted"]}
        parts = {key: _stand_ins(value, pooled and key == "strategy") for key, value in told.items()}
        return replace(from_plain(tree), **parts)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder / RECORD} is damaged: {type(error).__name__}: {error}") from None


def _stand_ins(told: Any, pooled: bool) -> Any:
    if isinstance(told, list):
        return tuple(_stand_ins(one, pooled) for one in told)
    return stand_in(told["name"], {key: value for key, value in told.items() if key != "name"}, pooled)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """In words, how one call is not the other."""
    yield from identity.changes("", before["experiment"], now["experiment"])
    if before["names"] != now["names"]:
        yield f"the clients were {_list(before['names'])}, are {_list(now['names'])} now"
    others = {"model": "the model is another", "start": "its initial weights are others"}
    yield from (words for key, words in others.items() if before[key] != now[key])
    if before["model"] == now["model"] and "settings" in before:  # not in a folder from before these were kept
        yield from identity.changes("model", {"name": "", **before["settings"]}, {"name": "", **now["settings"]})
    if any(key in before and before[key] != now[key] for key in ("loss", "loss_settings")):
        yield "the loss is another"
    for key in {**before["code"], **now["code"]}:
        if before["code"].get(key) != now["code"].get(key):
            yield f"the code of the {key} changed"
    data = [key for key in {**before["data"], **now["data"]} if before["data"].get(key) != now["data"].get(key)]
    whose = list(dict.fromkeys(key.rpartition(":")[0] for key in data))
    if whose:
        more = f" and of {len(whose) - 1} more" if len(whose) > 1 else ""
        yield f"the data of {_called(whose[0], now['names'])}{more} changed"


def _called(whose: str, names: Mapping[str, str]) -> str:
    before, _, number = whose.rpartition(" ")
    return f"{before} {names[number]!r}" if number in names else whose


def _list(names: Mapping[str, str]) -> str:
    few = list(names.values())[:4]
    return ", ".join(few) + (", …" if len(names) > 4 else "") if names else "numbered"


def kept(folder: Path, stored: Mapping[str, Any]) -> Holdings | None:
    """What clients hold, where the folder keeps it."""
    path = folder / DATA
    if not path.is_file():
        return None
    names = {int(client): name for client, name in stored["names"].items()}
    return restored(_tensors(path), names)


def started(folder: Path, module: nn.Module) -> nn.Module:
    """A copy of the module with the weights that the folder's run began with."""
    copy = deepcopy(module)
    try:
        copy.load_state_dict(_tensors(folder / START))
    except RuntimeError as error:
        why = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise ConfigError(f"the model does not take the weights of {folder / START}: {why}") from None
    return copy


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError, OffbeatError) as error:
        raise RunError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
