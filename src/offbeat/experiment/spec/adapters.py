"""Adapters that turn user code into choices: frozen dataclasses that print, store and compare their settings.

Such dataclasses are used as they are. A model may also be an nn.Module class or a function that returns a module, a
data set a function that returns examples, a loss or a staleness a function. For these, an adapter creates a dataclass
whose settings are the arguments of the function.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, OffbeatError
from offbeat.experiment.spec import user_code
from offbeat.scenario.data import Dataset, dataset_from_function
from offbeat.scenario.models import Shape, seeded
from offbeat.training import Task

T = TypeVar("T")
Code: TypeAlias = Any  # a class or function of a user
Adapted: TypeAlias = Any  # an instance of a class that an adapter created
Hint: TypeAlias = object  # a type annotation at run time

BASIC_TYPES = (bool, int, float, str)
DATA_ARGUMENTS = ("input_shape", "num_outputs")  # arguments of a model that come from the data
RESERVED_NAMES = ("name", "build", "load", "of")  # names that settings cannot have

# methods of the choices of each setting
REQUIRED_METHODS: Mapping[str, tuple[str, ...]] = {
    "strategy": ("init", "on_event"),
    "data": ("load",),
    "model": ("build",),
    "partition": ("split",),
    "delays": ("unit", "mean_of", "factor", "seconds", "expected"),
    "network": ("transfer",),
    "availability": ("window", "next_available"),
    "faults": ("strikes", "on_the_way", "spoilt"),
    "streaming": ("arrived", "order"),
    "staleness": ("__call__",),
    "loss": ("of",),
}
EXPECTED_FORMS = {
    "strategy": "a strategy is a frozen dataclass with init(world) and on_event(state, event)",
    "data": "data is a function that returns (x, y) or {site: (x, y)}, or a frozen dataclass with load()",
    "model": "a model is an nn.Module class, a function that returns a module, or a frozen dataclass with build",
    "loss": "a loss is a function of (outputs, labels), or a frozen dataclass with of",
    "staleness": "a staleness is a function of the number of versions, or a frozen dataclass with __call__",
}


def as_choice(setting: str, code: Code, name: str) -> type:
    """Return a frozen dataclass for a class or function that a user wrote for a setting."""
    form = EXPECTED_FORMS.get(setting, f"it must be a frozen dataclass with {', '.join(REQUIRED_METHODS[setting])}")
    is_class = isinstance(code, type)
    if not is_class and not inspect.isroutine(code):
        raise ConfigError(f"{name} is a {type(code).__name__}, no class or function: {form}")
    missing = [method for method in REQUIRED_METHODS[setting] if not hasattr(code, method)] if is_class else []
    if is_class and not missing and not issubclass(code, nn.Module):
        return _check_dataclass(code, name)
    if is_dataclass(code) or setting not in _ADAPTERS or (is_class and not _acts_as_function(setting, code)):
        problem = f"has no {' and no '.join(missing)}" if missing else "is a function"
        raise ConfigError(f"{name} {problem}: {form}")
    return _ADAPTERS[setting](code, name)


def _acts_as_function(setting: str, cls: type) -> bool:
    """Tell whether calling a class gives what a function for this setting returns."""
    if setting in ("model", "loss"):
        return issubclass(cls, nn.Module)
    return setting == "data" and hasattr(cls, "__getitem__")


def _check_dataclass(cls: type, name: str) -> type:
    """Return a class that is a frozen dataclass; raise ConfigError for others."""
    params = vars(cls).get("__dataclass_params__")
    if params is None or not params.frozen or not params.eq:
        problem = "is no dataclass" if params is None else "is not frozen" if params.eq else "cannot be compared"
        raise ConfigError(f"{name} {problem}: decorate it with @dataclass(frozen=True, kw_only=True)")
    return cls


# ---------------------------------------------------------------- functions and modules


@dataclass(frozen=True)
class SettingArgument:
    """An argument of a function that is a setting."""

    name: str
    hint: Hint
    default: object = MISSING
    as_list: bool = False  # whether the function gets a list; dataclasses hold tuples


def setting_arguments(code: Code, name: str, excluded: tuple[str, ...] = ()) -> list[SettingArgument]:
    """List the arguments that a file can set; others must have a default, which is used."""
    arguments = []
    hints = _argument_types(code)
    for parameter in _get_signature(code, name).parameters.values():
        if parameter.name in excluded or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        argument = _to_argument(parameter, hints.get(parameter.name))
        if argument is not None:
            arguments.append(argument)
        elif parameter.default is parameter.empty:
            raise ConfigError(f"{name}: a file cannot set its argument {parameter.name}: give it a default")
    return arguments


def _to_argument(parameter: inspect.Parameter, hint: Hint) -> SettingArgument | None:
    """Return the setting for a parameter; None if a file cannot hold its values."""
    default = parameter.default
    if parameter.name in RESERVED_NAMES or parameter.name.startswith("_"):
        return None
    as_list = isinstance(default, list) or typing.get_origin(hint) is list
    if isinstance(default, list):
        default = tuple(default)
    if default is parameter.empty:
        default = MISSING
    elif not _is_storable(default):
        return None
    if hint is None:
        if isinstance(default, tuple):
            entry_types = {type(entry) for entry in default}
            hint = tuple[entry_types.pop() if len(entry_types) == 1 else Any, ...]  # type: ignore[misc]
        else:
            hint = Any if default is MISSING or default is None else type(default)
    elif typing.get_origin(hint) is list:
        hint = tuple[typing.get_args(hint)[0], ...]  # type: ignore[misc]
    return SettingArgument(parameter.name, hint, default, as_list) if _is_storable_type(hint) else None


def _is_storable(value: object) -> bool:
    """Tell whether a file can hold a value."""
    if isinstance(value, tuple):
        return all(map(_is_storable, value))
    return value is None or isinstance(value, BASIC_TYPES)


def _is_storable_type(hint: Hint) -> bool:
    """Tell whether a file can hold the values of a type."""
    origin, parts = typing.get_origin(hint), [part for part in typing.get_args(hint) if part is not Ellipsis]
    if origin is None:
        return hint in (Any, types.NoneType, *BASIC_TYPES)
    if origin is typing.Annotated:
        return _is_storable_type(parts[0])
    is_composite = origin in (tuple, typing.Union, types.UnionType)
    return origin is typing.Literal or (is_composite and all(map(_is_storable_type, parts)))


def _get_signature(code: Code, name: str) -> inspect.Signature:
    """Return the signature of a class or function; raise ConfigError if Python does not know it."""
    try:
        return inspect.signature(code)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: its arguments are unknown: wrap it in a function of your own") from None


def _argument_types(code: Code) -> dict[str, Hint]:
    """Return the annotations of the arguments; empty if they cannot be resolved."""
    try:
        return typing.get_type_hints(getattr(code, "__init__") if isinstance(code, type) else code, include_extras=True)  # noqa: B009
    except Exception:  # names that only a type checker knows; defaults are sufficient
        return {}


def _make_class(code: Code, settings: list[SettingArgument], **methods: Callable[..., object]) -> type:
    """Create a frozen dataclass with these settings; its method `_keywords` returns them for a call of the code."""
    lists = {argument.name for argument in settings if argument.as_list}

    def keywords(self: Adapted) -> dict[str, object]:
        """Return the settings as keyword arguments."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {key: list(value) if key in lists and value is not None else value for key, value in values.items()}

    body = {"__doc__": inspect.getdoc(code), "__module__": code.__module__, "_keywords": keywords, **methods}
    settings_fields = [(setting.name, setting.hint, field(default=setting.default)) for setting in settings]
    return make_dataclass(code.__name__, settings_fields, namespace=body, frozen=True, kw_only=True)


def _call_user_code(code: Code, call: Callable[[], T]) -> T:
    """Convert an error of user code to one line with its position."""
    try:
        return call()
    except (OffbeatError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(user_code.describe_error(error, Path(inspect.getfile(code)))) from None


def _adapt_model(code: Code, name: str) -> type:
    """Create a model from a function or an nn.Module class."""
    parameters = _get_signature(code, name).parameters

    def build(self: Adapted, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        """Build the module; the code also gets the arguments that come from the data."""
        from_data = {"input_shape": tuple(input_shape), "num_outputs": num_outputs}
        keywords = {**self._keywords(), **{key: value for key, value in from_data.items() if key in parameters}}
        module = _call_user_code(code, lambda: seeded(seed, lambda: code(**keywords)))
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{name} returned a {type(module).__name__}, not an nn.Module")
        return module

    return _make_class(code, setting_arguments(code, name, DATA_ARGUMENTS), build=build)


def _adapt_data(code: Code, name: str) -> type:
    """Create a data set from a function that returns examples."""
    title = f"{Path(inspect.getfile(code)).stem}:{code.__name__}"

    def load(self: Adapted) -> Dataset:
        """Call the function and convert its examples."""
        return dataset_from_function(_call_user_code(code, lambda: code(**self._keywords())), title, name)

    return _make_class(code, setting_arguments(code, name), load=load)


def _call_arguments(code: Code, name: str, count: int, expected: str) -> tuple[str, ...]:
    """Return the names of the first arguments, which are values of the call and no settings."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in _get_signature(code, name).parameters.values() if p.kind in positional]
    if len(names) < count:
        raise ConfigError(f"{name} takes {len(names)} arguments: {expected}")
    return tuple(names[:count])


def _adapt_loss(code: Code, name: str) -> type:
    """Create a loss from a function or an nn.Module class."""
    is_class = isinstance(code, type)
    excluded = () if is_class else _call_arguments(code, name, 2, "a loss takes outputs and labels")

    def of(self: Adapted, task: Task, num_classes: int | None) -> Task:
        """Return the task with this loss."""
        if not hasattr(task, "criterion"):
            raise ConfigError(f"loss = {name}: {type(task).__name__.lower()} has its own loss: use task")
        return replace(task, criterion=self)  # type: ignore[type-var]

    def call(self: Adapted, outputs: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of a batch."""
        if is_class:
            value = _loss_module(code, self, outputs.device)(outputs, labels)
        else:
            value = code(outputs, labels, **self._keywords())
        if not isinstance(value, Tensor) or value.dim():
            kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ConfigError(f"{name} returned {kind}: a loss is one number as a tensor, such as the mean of a batch")
        return value

    return _make_class(code, setting_arguments(code, name, excluded), of=of, __call__=call)


@lru_cache(maxsize=64)
def _loss_module(cls: type[nn.Module], settings: Adapted, device: torch.device) -> nn.Module:
    """Create the module of a loss once, not for every batch."""
    return _call_user_code(cls, lambda: cls(**settings._keywords())).to(device)


def _adapt_staleness(code: Code, name: str) -> type:
    """Create a staleness weight from a function of the number of versions."""
    excluded = _call_arguments(code, name, 1, "a staleness takes the number of versions since the dispatch")

    def call(self: Adapted, u: int) -> float:
        """Return the weight of an update that is `u` versions old."""
        return float(code(u, **self._keywords()))

    return _make_class(code, setting_arguments(code, name, excluded), __call__=call)


_ADAPTERS: Mapping[str, Callable[[Code, str], type]] = {
    "model": _adapt_model,
    "data": _adapt_data,
    "loss": _adapt_loss,
    "staleness": _adapt_staleness,
}
