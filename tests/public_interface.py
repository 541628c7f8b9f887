"""List the public interface: commands and options, Python names and signatures, experiment fields and trace columns.

`python tests/public_interface.py` prints the list. `tests/public_interface.txt` holds the committed one.
"""

from __future__ import annotations

import dataclasses
import inspect
import sqlite3
from collections.abc import Iterator

import typer

import offbeat
import offbeat.testing
from offbeat.cli import app
from offbeat.core import protocol
from offbeat.core.strategies import REGISTRY
from offbeat.engine.trace_file import SCHEMA
from offbeat.experiment.spec.choices import CHOICES
from offbeat.experiment.spec.config import Experiment


def public_interface() -> list[str]:
    """Return one line for each command, option, signature, field, choice and column."""
    return [
        *commands("offbeat", typer.main.get_command(app)),
        *python_names("offbeat", offbeat, offbeat.__all__),
        *python_names("offbeat.core.protocol", protocol, protocol.__all__),
        *python_names("offbeat.testing", offbeat.testing, offbeat.testing.__all__),
        *(f"strategy {name} {arguments(cls)}" for name, cls in sorted(REGISTRY.items())),
        *(f"experiment field {field.name}" for field in dataclasses.fields(Experiment)),
        *choices(),
        *columns(),
    ]


def commands(path: str, command: object) -> Iterator[str]:
    """Yield each argument and option of a command and of its subcommands."""
    for parameter in getattr(command, "params", []):
        names = [*parameter.opts, *parameter.secondary_opts]
        if parameter.name != "help":
            yield f"command {path} {parameter.param_type_name} {' '.join(names)}"
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield f"command {path} {name}"
        yield from commands(f"{path} {name}", inner)


def python_names(path: str, module: object, names: list[str]) -> Iterator[str]:
    """Yield the signature of each public function and class, and the public methods of classes."""
    for name in sorted(names):
        value = getattr(module, name)
        if isinstance(value, type):
            protocols = getattr(value, "_is_protocol", False)
            yield f"python {path}.{name}" + ("" if protocols or value.__module__ == "builtins" else arguments(value))
            yield from (f"python {path}.{name}.{member}" for member in members(value))
        elif callable(value):
            yield f"python {path}.{name}{arguments(value)}"
        else:
            yield f"python {path}.{name}"


def members(cls: type) -> list[str]:
    """List the public methods and properties that a class of the package defines or inherits from the package."""
    owners = [owner for owner in cls.__mro__ if owner.__module__.startswith("offbeat")]
    methods = {name for owner in owners for name, value in vars(owner).items() if _is_method(value)}
    return sorted(name for name in methods if not name.startswith("_"))


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod))


def arguments(value: object) -> str:
    """Return the arguments of a callable with their defaults and without their types."""
    try:
        parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    except ValueError:
        return ""
    parts: list[str] = []
    keywords = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            parts.append("*")
            keywords = True
        default = "" if parameter.default is parameter.empty else f"={_shown(parameter.default)}"
        parts.append(
            {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
            + parameter.name
            + default
        )
    return f"({', '.join(parts)})"


def _shown(default: object) -> str:
    """Return the text of a default; defaults that are made at call time have no stable text."""
    text = repr(default)
    return "..." if " at 0x" in text or "<factory>" in text or "<class" in text else text


def choices() -> Iterator[str]:
    """Yield the names of each kind of choice: strategies, data sets, models, delays and so on."""
    for kind, registry in sorted(CHOICES.items()):
        names = registry if isinstance(registry, dict) else getattr(registry, "names", registry)
        if isinstance(names, dict):
            yield from (f"choice {kind} {name} {arguments(value)}" for name, value in sorted(names.items()))


def columns() -> Iterator[str]:
    """Yield the columns of the trace."""
    with sqlite3.connect(":memory:") as database:
        database.executescript(SCHEMA)
        for (table,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall():
            for row in database.execute(f"PRAGMA table_info({table})"):
                yield f"trace {table}.{row[1]} {row[2]}"


if __name__ == "__main__":
    print("\n".join(public_interface()))
