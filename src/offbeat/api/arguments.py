"""What a script asks of `simulate` and `compare`, checked: a wrong type gets one line that says what to write."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, to_single_line, unknown_name
from offbeat.core.protocol import Strategy
from offbeat.engine.until import Target, Until, parse_until
from offbeat.experiment.scripted.client_datasets import ClientDatasets
from offbeat.experiment.spec.choices import default_choice
from offbeat.experiment.spec.config import CHOICES
from offbeat.scenario.availability import Availability
from offbeat.scenario.delays import ConstantDelays, Delays, PerClient
from offbeat.scenario.faults import Fault
from offbeat.scenario.models.model_base import seeded
from offbeat.training.tasks import Loss, Task
from offbeat.training.torch_state import exclusive_generators
from offbeat.training.trainer import Training

# what each law of the surroundings has to be able to do
ABLE = {"delays": ("mean_of", "factor"), "network": ("transfer",), "streaming": ("arrived", "order")}


def modelled(given: nn.Module | Callable[[int], nn.Module], seed: int) -> nn.Module:
    """The model as it starts: one for all seeds, or what a function of the seed makes, from weights drawn for it."""
    if isinstance(given, nn.Module):
        return _whole(given)
    if isinstance(given, type):
        name = given.__name__
        raise ConfigError(
            f"model = {name} is a class: write {name}(…), or lambda seed: {name}(…) for other weights for each seed"
        )
    if not callable(given):
        raise ConfigError(f"model = {shown(given)}: give a torch.nn.Module, or a function of the seed that makes one")
    try:
        with exclusive_generators():
            made = seeded(seed, lambda: given(seed))
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise ConfigError(f"model: the function is called with the seed alone, and says: {error}") from None
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model: the function gave {shown(made)} for seed {seed}, not a torch.nn.Module")
    return _whole(made)


def _whole(module: nn.Module) -> nn.Module:
    """With all its weights, and nothing but tensors to keep of it."""
    name = type(module).__name__
    if any(map(nn.parameter.is_lazy, [*module.parameters(), *module.buffers()])):
        raise ConfigError(f"model = {name}: it has layers without weights as yet: call it on a batch first")
    for key, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise ConfigError(f"model = {name}: {key} of its state_dict is a {type(value).__name__}, not a tensor")
    return module


def precision(module: nn.Module) -> torch.dtype:
    """Of the model's parameters, which is that of data that comes without one on purpose."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def strategy(given: Strategy | str) -> Strategy:
    if isinstance(given, str):
        made: Strategy = default_choice("strategy", given)
        return made
    if isinstance(given, type) or not isinstance(given, Strategy):
        hint = f"write {given.__name__}()" if isinstance(given, type) else "a strategy has init and on_event"
        hint = "several are for offbeat.compare" if isinstance(given, (list, tuple)) else hint
        raise ConfigError(f"strategy = {shown(given)} is not a strategy: {hint}")
    return given


def training(given: Training | None) -> Training:
    if given is None or isinstance(given, Training):
        return given or Training()
    if isinstance(given, Mapping):
        known = [f.name for f in fields(Training)]
        wrong = next((str(key) for key in given if key not in known), None)
        written = ", ".join(f"{key}={value!r}" for key, value in given.items())
        how = f"write Training({written})" if wrong is None else unknown_name("setting", wrong, known)
        raise ConfigError(f"training = {shown(given)}: {how}")
    raise ConfigError(f"training = {shown(given)}: write Training(lr=0.1, batch=32), or leave it out")


def until(given: Until | str | float) -> Until:
    if isinstance(given, Until):
        return given
    if isinstance(given, str) or _number(given):
        return parse_until(str(given))
    raise ConfigError(f"until = {shown(given)}: write '3600s', '500updates', 'acc=0.9,3600s', or seconds")


def target(given: Target | str | None) -> Target | None:
    if given is None or isinstance(given, Target):
        return given
    if isinstance(given, str) and "=" in given and "," not in given:
        return parse_until(given, Until(updates=1)).target
    raise ConfigError(f"target = {shown(given)}: write 'acc=0.9'")


def whole(given: Any, what: str, least: int = 0) -> int:
    try:
        if isinstance(given, (bool, np.bool_)):
            raise TypeError
        number = operator.index(given)
    except TypeError:
        raise ConfigError(f"{what} = {shown(given)}: give a whole number, {least} or more") from None
    if number < least:
        raise ConfigError(f"{what} = {number}: must be {least} or more")
    return number


def positive(given: Any, what: str) -> float | None:
    if given is None:
        return None
    if not _number(given) or not given > 0 or not isfinite(given):
        raise ConfigError(f"{what} = {shown(given)}: must be a positive number")
    return float(given)


def text(given: Any, what: str, example: str) -> str:
    if isinstance(given, str):
        return given
    raise ConfigError(f"{what} = {shown(given)}: write {example!r}")


def loss(given: Task | Loss | None) -> Task | Loss | None:
    if isinstance(given, type):
        raise ConfigError(f"loss = {given.__name__} is a class: write {given.__name__}()")
    if given is None or callable(given) or isinstance(given, Task):
        return given
    raise ConfigError(f"loss = {shown(given)}: give a function (outputs, labels) -> scalar, or a task")


def delays(given: Any, holdings: ClientDatasets) -> Delays:
    if _number(given):
        return ConstantDelays(mean=float(given))
    if isinstance(given, Mapping):
        return PerClient(means=_by_client(given, holdings))
    if isinstance(given, (Sequence, np.ndarray, Tensor)) and not isinstance(given, str):
        clients = list(holdings.train)
        if len(given) != len(clients):
            raise ConfigError(
                f"{len(given)} delays for {len(clients)} clients: give one number, or one for each client"
            )
        if clients != list(range(len(clients))):
            raise ConfigError(
                "a list of delays goes with a list of clients: for clients numbered your own way give one number or a "
                "law"
            )
        return PerClient(means=tuple(_seconds(s, f"delays[{i}]") for i, s in enumerate(given)))
    if isinstance(given, type) or not _able(given, "delays"):
        how = "give seconds, a list of them, or a law such as Uniform(low=10, high=100)"
        raise ConfigError(f"delays = {shown(given)}: {how}")
    law: Delays = given
    return law


def _by_client(given: Mapping[Any, Any], holdings: ClientDatasets) -> tuple[float, ...]:
    known = {holdings.name(client): client for client in holdings.train}
    if list(holdings.train) != list(range(len(holdings.train))):
        raise ConfigError("delays by client go with clients by name: for clients numbered your own way give a law")
    for key in given:
        if key not in known:
            raise ConfigError(f"delays: {unknown_name('client', str(key), map(str, known))}")
    missing = next((name for name in known if name not in given), None)
    if missing is not None:
        raise ConfigError(f"delays: client {missing!r} has none: give one for each client")
    return tuple(
        _seconds(given[holdings.name(client)], f"delays[{holdings.name(client)!r}]") for client in holdings.train
    )


def _seconds(given: Any, what: str) -> float:
    value = given.item() if isinstance(given, Tensor) else given
    if not _number(value):
        raise ConfigError(f"{what} = {shown(given)}: must be a number of seconds")
    return float(value)


def law(given: Any, setting: str, default: Any) -> Any:
    """One of the laws of the surroundings; None is the usual one."""
    if given is None:
        return default
    fits = isinstance(given, Availability) if setting == "availability" else _able(given, setting)
    if isinstance(given, type) or not fits:
        raise ConfigError(f"{setting} = {shown(given)}: {_instead(given, setting)}")
    return given


def faults(given: Any) -> tuple[Fault, ...]:
    several = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for fault in several:
        if not isinstance(fault, Fault):
            raise ConfigError(f"faults = {shown(fault)}: {_instead(fault, 'faults')}")
    return several


def _instead(given: Any, setting: str) -> str:
    known = CHOICES[setting]
    meant = given if isinstance(given, type) else known.get(given) if isinstance(given, str) else None
    if meant is not None:
        return f"write {meant.__name__}(…), of {meant.__module__}"
    if isinstance(given, str):
        return str(unknown_name(setting, given, known))
    return f"give one of {', '.join(cls.__name__ for cls in known.values())}"


def _able(given: Any, setting: str) -> bool:
    return all(callable(getattr(given, name, None)) for name in ABLE[setting])


def folder(given: Any) -> Path:
    if not isinstance(given, (str, Path)) or given == "":
        raise ConfigError(f"out = {shown(given)}: give the path of a folder")
    try:
        path = Path(given).expanduser()
        path.lstat()
    except FileNotFoundError:
        return path
    except (OSError, RuntimeError, ValueError) as error:  # too long, of an unknown user, with a null byte
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"out = {shown(str(given))}: {why}; give the path of a folder") from None
    if not path.is_dir():
        raise ConfigError(f"out = {str(given)!r}: it is a file; give the path of a folder")
    return path


def _number(given: Any) -> bool:
    real = isinstance(given, (int, float, np.integer, np.floating))
    return real and not isinstance(given, (bool, np.bool_))


def shown(given: Any) -> str:
    """A value as a script would write it, if that is short."""
    if isinstance(given, type):
        return given.__name__
    try:
        written = to_single_line(repr(given))
    except Exception:
        written = type(given).__name__
    return written if len(written) <= 60 else f"{written[:57]}..."
