"""Checks of the arguments of `simulate` and `compare`. A wrong type gives one line that says what to write."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, to_single_line, unknown_name
from offbeat.core.protocol import Strategy
from offbeat.engine import Target, Until, parse_until
from offbeat.experiment.scripted import ClientDatasets
from offbeat.experiment.spec import CHOICES, default_choice
from offbeat.scenario import Availability, Fault
from offbeat.scenario.delays import ConstantDelays, Delays, PerClient
from offbeat.scenario.models import seeded
from offbeat.training import Loss, Task, Training, exclusive_generators

T = TypeVar("T")

REQUIRED_METHODS = {"delays": ("mean_of", "factor"), "network": ("transfer",), "streaming": ("arrived", "order")}


def build_model(model: nn.Module | Callable[[int], nn.Module], seed: int) -> nn.Module:
    """Return the initial model: a module as it is, or the result of a function of the seed.

    The generators of torch are seeded for the call of the function.
    """
    if isinstance(model, nn.Module):
        return _check_module(model)
    if isinstance(model, type):
        name = model.__name__
        raise ConfigError(f"model = {name} is a class: write {name}(…), or lambda seed: {name}(…) for weights by seed")
    if not callable(model):
        raise ConfigError(f"model = {format_value(model)}: give a torch.nn.Module, or a function of the seed")
    try:
        with exclusive_generators():
            module = seeded(seed, lambda: model(seed))
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise ConfigError(f"model: the function is called with the seed only, and raised: {error}") from None
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model: the function returned {format_value(module)} for seed {seed}, not a torch.nn.Module")
    return _check_module(module)


def _check_module(module: nn.Module) -> nn.Module:
    """Reject modules with uninitialized layers or with a state_dict that holds more than tensors."""
    name = type(module).__name__
    if any(map(nn.parameter.is_lazy, [*module.parameters(), *module.buffers()])):
        raise ConfigError(f"model = {name}: it has layers without weights: call it on a batch first")
    for key, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise ConfigError(f"model = {name}: {key} of its state_dict is a {type(value).__name__}, not a tensor")
    return module


def parameter_dtype(module: nn.Module) -> torch.dtype:
    """Return the floating-point type of the parameters; NumPy data and data sets are converted to it."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def check_strategy(strategy: Strategy | str) -> Strategy:
    """Return the strategy; a name stands for that strategy with its defaults."""
    if isinstance(strategy, str):
        named: Strategy = default_choice("strategy", strategy)
        return named
    if isinstance(strategy, type) or not isinstance(strategy, Strategy):
        hint = f"write {strategy.__name__}()" if isinstance(strategy, type) else "a strategy has init and on_event"
        hint = "use offbeat.compare for several" if isinstance(strategy, (list, tuple)) else hint
        raise ConfigError(f"strategy = {format_value(strategy)} is not a strategy: {hint}")
    return strategy


def check_training(training: Training | None) -> Training:
    """Return the training section, by default one with the default settings."""
    if training is None or isinstance(training, Training):
        return training or Training()
    if isinstance(training, Mapping):
        known = [f.name for f in fields(Training)]
        wrong = next((str(key) for key in training if key not in known), None)
        settings = ", ".join(f"{key}={value!r}" for key, value in training.items())
        hint = f"write Training({settings})" if wrong is None else unknown_name("setting", wrong, known)
        raise ConfigError(f"training = {format_value(training)}: {hint}")
    raise ConfigError(f"training = {format_value(training)}: write Training(lr=0.1, batch=32), or omit it")


def check_until(until: Until | str | float) -> Until:
    """Return the end of the run; a number is in virtual seconds."""
    if isinstance(until, Until):
        return until
    if isinstance(until, str) or _is_number(until):
        return parse_until(str(until))
    raise ConfigError(f"until = {format_value(until)}: write '3600s', '500updates', 'acc=0.9,3600s', or seconds")


def check_target(target: Target | str | None) -> Target | None:
    """Return the target of "time to target"."""
    if target is None or isinstance(target, Target):
        return target
    if isinstance(target, str) and "=" in target and "," not in target:
        return parse_until(target, Until(updates=1)).target
    raise ConfigError(f"target = {format_value(target)}: write 'acc=0.9'")


def check_whole(value: object, name: str, minimum: int = 0) -> int:
    """Return a whole number that is at least the minimum."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError for other types
    except TypeError:
        raise ConfigError(f"{name} = {format_value(value)}: give a whole number, {minimum} or more") from None
    if number < minimum:
        raise ConfigError(f"{name} = {number}: must be {minimum} or more")
    return number


def check_positive(value: float | None, name: str) -> float | None:
    """Return a positive finite number, or None."""
    if value is None:
        return None
    if not _is_number(value) or not value > 0 or not isfinite(value):
        raise ConfigError(f"{name} = {format_value(value)}: must be a positive number")
    return float(value)


def check_text(value: str, name: str, example: str) -> str:
    """Return a text; errors show an example."""
    if isinstance(value, str):
        return value
    raise ConfigError(f"{name} = {format_value(value)}: write {example!r}")


def check_loss(loss: Task | Loss | None) -> Task | Loss | None:
    """Return the loss: a function, a task, or None for the default of the labels."""
    if isinstance(loss, type):
        raise ConfigError(f"loss = {loss.__name__} is a class: write {loss.__name__}()")
    if loss is None or callable(loss) or isinstance(loss, Task):
        return loss
    raise ConfigError(f"loss = {format_value(loss)}: give a function (outputs, labels) -> scalar, or a task")


def check_delays(delays: Delays | float | Sequence[float] | Mapping[str, float], datasets: ClientDatasets) -> Delays:
    """Return a delay law; numbers are seconds per job, for all clients or for each one."""
    if _is_number(delays):
        return ConstantDelays(mean=float(delays))  # type: ignore[arg-type]
    if isinstance(delays, Mapping):
        return PerClient(means=_delays_by_name(delays, datasets))
    if isinstance(delays, (Sequence, np.ndarray, Tensor)) and not isinstance(delays, str):
        if len(delays) != len(datasets.train):
            count = len(datasets.train)
            raise ConfigError(f"{len(delays)} delays for {count} clients: give one number, or one for each client")
        if not _numbered_from_zero(datasets):
            raise ConfigError("a list of delays needs a list of clients: for numbered clients give one number or a law")
        return PerClient(means=tuple(_check_seconds(value, f"delays[{i}]") for i, value in enumerate(delays)))
    if isinstance(delays, type) or not _has_methods(delays, "delays"):
        hint = "give seconds, a list of them, or a law such as Uniform(low=10, high=100)"
        raise ConfigError(f"delays = {format_value(delays)}: {hint}")
    return delays  # type: ignore[return-value]  # a delay law, by its methods


def _delays_by_name(delays: Mapping[str, float], datasets: ClientDatasets) -> tuple[float, ...]:
    """Return the delays in the order of the clients."""
    names = [datasets.name(client) for client in datasets.train]
    if not _numbered_from_zero(datasets):
        raise ConfigError("delays given by name need named clients; for numbered clients pass a delay law")
    for name in delays:
        if name not in names:
            raise ConfigError(f"delays: {unknown_name('client', str(name), map(str, names))}")
    missing = next((name for name in names if name not in delays), None)
    if missing is not None:
        raise ConfigError(f"delays: client {missing!r} has none: give one for each client")
    return tuple(_check_seconds(delays[name], f"delays[{name!r}]") for name in names)  # type: ignore[index]


def _numbered_from_zero(datasets: ClientDatasets) -> bool:
    """Tell whether clients are numbered without gaps, from 0."""
    return list(datasets.train) == list(range(len(datasets.train)))


def _check_seconds(value: object, name: str) -> float:
    """Return a number of seconds; errors name the argument."""
    number = value.item() if isinstance(value, Tensor) else value
    if not _is_number(number):
        raise ConfigError(f"{name} = {format_value(value)}: must be a number of seconds")
    return float(number)  # type: ignore[arg-type]


def check_law(law: T | None, setting: str, default: T) -> T:
    """Return a law of the simulated world (network, availability, streaming), or the default for None."""
    if law is None:
        return default
    valid = isinstance(law, Availability) if setting == "availability" else _has_methods(law, setting)
    if isinstance(law, type) or not valid:
        raise ConfigError(f"{setting} = {format_value(law)}: {_suggest_law(law, setting)}")
    return law


def check_faults(faults: Fault | Sequence[Fault]) -> tuple[Fault, ...]:
    """Return the faults as a tuple."""
    several = tuple(faults) if isinstance(faults, (list, tuple)) else (faults,)
    for fault in several:
        if not isinstance(fault, Fault):
            raise ConfigError(f"faults = {format_value(fault)}: {_suggest_law(fault, 'faults')}")
    return several


def _suggest_law(value: object, setting: str) -> str:
    """Suggest what to write instead of an invalid law."""
    known = CHOICES[setting]
    cls = value if isinstance(value, type) else known.get(value) if isinstance(value, str) else None
    if cls is not None:
        return f"write {cls.__name__}(…), from {cls.__module__}"
    if isinstance(value, str):
        return str(unknown_name(setting, value, known))
    return f"give one of {', '.join(cls.__name__ for cls in known.values())}"


def _has_methods(value: object, setting: str) -> bool:
    """Tell whether an object has the methods of a law."""
    return all(callable(getattr(value, name, None)) for name in REQUIRED_METHODS[setting])


def check_folder(folder: str | Path) -> Path:
    """Return the path of a folder that exists or can be created."""
    if not isinstance(folder, (str, Path)) or folder == "":
        raise ConfigError(f"out = {format_value(folder)}: give the path of a folder")
    try:
        path = Path(folder).expanduser()
        path.lstat()
    except FileNotFoundError:
        return path
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown user, or a null byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"out = {format_value(str(folder))}: {reason}; give the path of a folder") from None
    if not path.is_dir():
        raise ConfigError(f"out = {str(folder)!r}: it is a file; give the path of a folder")
    return path


def _is_number(value: object) -> bool:
    """Tell whether a value is a number of Python or NumPy, but no boolean."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))


def format_value(value: object) -> str:
    """Format a value as a script would write it, shortened to 60 characters."""
    if isinstance(value, type):
        return value.__name__
    try:
        text = to_single_line(repr(value))
    except Exception:
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
