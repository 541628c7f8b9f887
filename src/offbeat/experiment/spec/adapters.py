"""What stands in somebody's file as an experiment can hold it: a frozen dataclass that prints, saves, compares.

Such a dataclass is taken as it is. A model may also be an nn.Module class or a function that returns a module, a data
set a function that returns examples (scenario/data/user_data.py), a loss and a staleness a function: these get a
dataclass made for them, whose settings are their arguments.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, OffbeatError
from offbeat.experiment.spec import user_code
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.user_data import dataset_from_function
from offbeat.scenario.models.model_interface import Shape, seeded
from offbeat.training.tasks import Task

BASIC_TYPES = (bool, int, float, str)
DATA_ARGUMENTS = ("input_shape", "num_outputs")  # arguments of a model that are no settings
RESERVED_NAMES = (
    "name",
    "build",
    "load",
    "of",
)  # no setting can be called so: the choice's name, and what is done with it

# what a choice of each kind must have
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
    "staleness": "a staleness is a function of how many versions old, or a frozen dataclass with __call__",
}


def as_choice(setting: str, given: Any, name: str) -> type:
    """A frozen dataclass for what `name` stands for in somebody's code; `setting` is where it is to go."""
    if not isinstance(given, type) and not inspect.isroutine(given):
        kind = type(given).__name__
        raise ConfigError(f"{name} is a {kind}, no class or function: {_expected_form(setting)}")
    if (
        isinstance(given, type)
        and all(hasattr(given, method) for method in REQUIRED_METHODS[setting])
        and not _is_module(given)
    ):
        return _check_dataclass(given, name)
    if (
        is_dataclass(given)
        or setting not in _ADAPTERS
        or (isinstance(given, type) and not _acts_as_function(setting, given))
    ):
        lacks = [m for m in REQUIRED_METHODS[setting] if not hasattr(given, m)] if isinstance(given, type) else []
        what = f"has no {' and no '.join(lacks)}" if lacks else "is a function"
        raise ConfigError(f"{name} {what}: {_expected_form(setting)}")
    return _ADAPTERS[setting](given, name)


def _expected_form(setting: str) -> str:
    return EXPECTED_FORMS.get(
        setting, f"what goes there is a frozen dataclass with {', '.join(REQUIRED_METHODS[setting])}"
    )


def _is_module(given: type) -> bool:
    return issubclass(given, nn.Module)


def _acts_as_function(setting: str, given: type) -> bool:
    """A class whose objects do what a function would."""
    return _is_module(given) if setting in ("model", "loss") else setting == "data" and hasattr(given, "__getitem__")


def _check_dataclass(given: type, name: str) -> type:
    params = vars(given).get("__dataclass_params__")
    if params is None or not params.frozen or not params.eq:
        lacks = "is no dataclass" if params is None else "is not frozen" if params.eq else "cannot be compared"
        raise ConfigError(
            f"{name} {lacks}: write @dataclass(frozen=True, kw_only=True) above it, so that it can be stored"
        )
    return given


# ---------------------------------------------------------------- functions and modules


@dataclass(frozen=True)
class SettingArgument:
    """An argument that is a setting."""

    name: str
    hint: Any
    default: Any = MISSING
    as_list: bool = False  # dataclasses hold tuples; whoever asked for a list gets one

    def as_field(self) -> tuple[str, Any, Any]:
        return self.name, self.hint, field(default=self.default)


def setting_arguments(given: Callable[..., Any], name: str, left_out: tuple[str, ...] = ()) -> list[SettingArgument]:
    """Those that a file can give. What has a default that no file can hold keeps it."""
    found = []
    hints = _hints(given)
    for parameter in _signature(given, name).parameters.values():
        if parameter.name in left_out or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        made = _argument(parameter, hints.get(parameter.name))
        if made is not None:
            found.append(made)
        elif parameter.default is parameter.empty:
            raise ConfigError(f"{name}: its argument {parameter.name} is nothing a file can hold: give it a default")
    return found


def _argument(parameter: inspect.Parameter, hint: Any) -> SettingArgument | None:
    default = parameter.default
    if parameter.name in RESERVED_NAMES or parameter.name.startswith("_"):
        return None
    as_list = isinstance(default, list) or typing.get_origin(hint) is list
    if isinstance(default, list):
        default = tuple(default)
    if default is parameter.empty:
        default = MISSING
    elif not _is_basic(default):
        return None
    if hint is None:
        hint = Any if default is MISSING or default is None else _infer_type(default)
    elif typing.get_origin(hint) is list:
        hint = tuple[typing.get_args(hint)[0], ...]  # type: ignore[misc]
    return SettingArgument(parameter.name, hint, default, as_list) if _is_basic_type(hint) else None


def _is_basic(value: Any) -> bool:
    return value is None or isinstance(value, BASIC_TYPES) or (isinstance(value, tuple) and all(map(_is_basic, value)))


def _is_basic_type(hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), [part for part in typing.get_args(hint) if part is not Ellipsis]
    if origin is None:
        return hint in (Any, types.NoneType, *BASIC_TYPES)
    if origin is typing.Annotated:
        return _is_basic_type(parts[0])
    inner = origin in (tuple, typing.Union, types.UnionType) and all(map(_is_basic_type, parts))
    return inner or origin is typing.Literal


def _infer_type(default: Any) -> Any:
    """Of an argument without annotation."""
    if not isinstance(default, tuple):
        return type(default)
    kinds = {type(entry) for entry in default}
    return tuple[kinds.pop() if len(kinds) == 1 else Any, ...]  # type: ignore[misc]


def _signature(given: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(given)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: its arguments cannot be told: write it as a function of your own") from None


def _hints(given: Callable[..., Any]) -> dict[str, Any]:
    told = given.__init__ if isinstance(given, type) else given  # type: ignore[misc]
    try:
        return typing.get_type_hints(told, include_extras=True)
    except Exception:  # names only a type checker knows: defaults tell enough
        return {}


def _make_class(given: Any, name: str, settings: list[SettingArgument], **methods: Any) -> type:
    lists = {argument.name for argument in settings if argument.as_list}

    def keywords(self: Any) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {key: list(value) if key in lists and value is not None else value for key, value in values.items()}

    body = {"__doc__": inspect.getdoc(given), "__module__": given.__module__, "_keywords": keywords, **methods}
    return make_dataclass(given.__name__, [a.as_field() for a in settings], namespace=body, frozen=True, kw_only=True)


def _call_user_code(given: Any, call: Callable[[], Any]) -> Any:
    """What somebody's code raises is one line that says where."""
    try:
        return call()
    except (OffbeatError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(user_code.describe_error(error, Path(inspect.getfile(given)))) from None


def _adapt_model(given: Any, name: str) -> type:
    wanted = [key for key in DATA_ARGUMENTS if key in _signature(given, name).parameters]

    def build(self: Any, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        told = {"input_shape": tuple(input_shape), "num_outputs": num_outputs}
        given_too = {key: told[key] for key in wanted}
        made = _call_user_code(given, lambda: seeded(seed, lambda: given(**self._keywords(), **given_too)))
        if not isinstance(made, nn.Module):
            raise ConfigError(f"{name} gave a {type(made).__name__}, not an nn.Module")
        return made

    return _make_class(given, name, setting_arguments(given, name, DATA_ARGUMENTS), build=build)


def _adapt_data(given: Any, name: str) -> type:
    called = f"{Path(inspect.getfile(given)).stem}:{given.__name__}"

    def load(self: Any) -> Dataset:
        return dataset_from_function(_call_user_code(given, lambda: given(**self._keywords())), called, name)

    return _make_class(given, name, setting_arguments(given, name), load=load)


def _call_arguments(given: Any, name: str, count: int, what: str) -> tuple[str, ...]:
    """The names of the arguments that are no settings, because they are given in a call."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in _signature(given, name).parameters.values() if p.kind in positional]
    if len(names) < count:
        raise ConfigError(f"{name} takes {len(names)} arguments: {what}")
    return tuple(names[:count])


def _adapt_loss(given: Any, name: str) -> type:
    called = () if isinstance(given, type) else _call_arguments(given, name, 2, "a loss takes outputs and labels")

    def of(self: Any, task: Task, num_classes: int | None) -> Task:
        if not hasattr(task, "criterion"):
            raise ConfigError(f"loss = {name}: {type(task).__name__.lower()} has a loss of its own: use task")
        return replace(task, criterion=self)  # type: ignore[type-var]

    def call(self: Any, outputs: Tensor, labels: Tensor) -> Tensor:
        if isinstance(given, type):
            value = _criterion(given, self, outputs.device)(outputs, labels)
        else:
            value = given(outputs, labels, **self._keywords())
        if not isinstance(value, Tensor) or value.dim():
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ConfigError(f"{name} gave {what}: a loss is one number as a tensor, such as the mean of a batch")
        return value

    return _make_class(given, name, setting_arguments(given, name, called), of=of, __call__=call)


@lru_cache(maxsize=64)
def _criterion(given: type, settings: Any, device: torch.device) -> nn.Module:
    """Once: a module's constants are not made anew for every batch."""
    module: nn.Module = _call_user_code(given, lambda: given(**settings._keywords()))
    return module.to(device)


def _adapt_staleness(given: Any, name: str) -> type:
    called = _call_arguments(given, name, 1, "a staleness takes how many versions old an update is")

    def call(self: Any, u: int) -> float:
        return float(given(u, **self._keywords()))

    return _make_class(given, name, setting_arguments(given, name, called), __call__=call)


_ADAPTERS: Mapping[str, Callable[[Any, str], type]] = {
    "model": _adapt_model,
    "data": _adapt_data,
    "loss": _adapt_loss,
    "staleness": _adapt_staleness,
}
