"""Render public names of a module as Markdown: signatures, docstrings, fields with their comments, methods."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from types import FunctionType, ModuleType
from typing import Any

# modules that define constants which public modules export
CONSTANT_MODULES = (
    "offbeat.core.local_rules",
    "offbeat.testing.laws",
    "offbeat.testing.event_scripts",
    "offbeat.testing.law_runner",
)


def names_of(module: ModuleType, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield f"### {name}\n"
        value = inspect.unwrap(getattr(module, name))
        if isinstance(value, type):
            yield from _class(value)
        elif isinstance(value, FunctionType):
            yield _fenced(_signature(name, value))
            yield _docstring(value)
        else:
            yield _fenced(_assigned(module, name))


def _class(cls: type) -> Iterator[str]:
    yield _docstring(cls)
    fields = _fields(cls)
    if fields:
        yield _fenced(f"class {cls.__name__}:\n" + textwrap.indent(fields, "    "))
    elif not is_dataclass(cls) and isinstance(cls.__init__, FunctionType) and not getattr(cls, "_is_protocol", False):
        yield _fenced(_signature(cls.__name__, cls.__init__, drop_self=True))
    for name, method in vars(cls).items():
        inner = method.fget if isinstance(method, property) else getattr(method, "__func__", method)
        if name.startswith("_") or not isinstance(inner, FunctionType) or not inspect.getdoc(inner):
            continue
        title = f"`{name}`" if isinstance(method, property) else f"`{_signature(name, inner, drop_self=True)}`"
        yield f"- {title}: {' '.join((inspect.getdoc(inner) or '').split())}"
    yield ""


def _docstring(value: Any) -> str:
    """Return the docstring as Markdown; indented parts are code."""
    text = inspect.getdoc(value) or ""
    if text.startswith(f"{getattr(value, '__name__', '')}("):  # a dataclass without a docstring has its signature
        return ""
    return text.replace("<", "\\<") + "\n"


def _signature(name: str, function: FunctionType, *, drop_self: bool = False) -> str:
    """Return the signature as written in the source, with the names of types."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    if drop_self and arguments.args:
        arguments.args = arguments.args[1:]
    returned = (
        f" -> {ast.unparse(node.returns)}" if node.returns is not None and function.__name__ != "__init__" else ""
    )
    line = f"{name}({ast.unparse(arguments)}){returned}"
    return line if len(line) <= 100 or drop_self else _broken(name, arguments, returned)


def _broken(name: str, arguments: ast.arguments, returned: str) -> str:
    parts = re.split(r", (?=\*|\w+(?::|=|$))", ast.unparse(arguments))
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _fields(cls: type) -> str:
    """Return the annotated names of a class with their comments."""
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    body = ast.parse("\n".join(lines)).body[0]
    assert isinstance(body, ast.ClassDef)
    lines_of_fields: list[str] = []
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id[0] == "_":
            continue
        first = node.lineno - 1
        while lines[first - 1].strip().startswith("#"):
            first -= 1
        lines_of_fields += lines[first : node.end_lineno]
    return textwrap.dedent("\n".join(lines_of_fields))


def _assigned(module: ModuleType, name: str) -> str:
    """Return the statement that assigns the name."""
    for home in (module, *(sys.modules[name] for name in CONSTANT_MODULES)):
        source = inspect.getsource(home)
        for node in ast.parse(source).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
    raise LookupError(f"{name} of {module.__name__}: no statement assigns it in {', '.join(CONSTANT_MODULES)}")


def _fenced(text: str) -> str:
    return f"```python\n{text}\n```\n"
