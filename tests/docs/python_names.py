"""Public names of a module as Markdown: signature, docstring, fields with the comments beside them, methods."""

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

# modules whose constants the public ones hand on
HOMES = ("offbeat.testing.laws", "offbeat.testing.event_scripts", "offbeat.testing.law_runner")


def names_of(module: ModuleType, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield f"### {name}\n"
        value = inspect.unwrap(getattr(module, name))
        if isinstance(value, type):
            yield from _class(value)
        elif isinstance(value, FunctionType):
            yield _fenced(_signature(name, value))
            yield _said(value)
        else:
            yield _fenced(_assigned(module, name))


def _class(cls: type) -> Iterator[str]:
    yield _said(cls)
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


def _said(value: Any) -> str:
    """Paragraphs; what is indented in it is code."""
    said = inspect.getdoc(value) or ""
    if said.startswith(f"{getattr(value, '__name__', '')}("):  # a dataclass that says nothing: its signature
        return ""
    return said.replace("<", "\\<") + "\n"


def _signature(name: str, function: FunctionType, *, drop_self: bool = False) -> str:
    """As it is written in the file, so that types are the names their authors gave them."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    given = node.args
    if drop_self and given.args:
        given.args = given.args[1:]
    returned = (
        f" -> {ast.unparse(node.returns)}" if node.returns is not None and function.__name__ != "__init__" else ""
    )
    line = f"{name}({ast.unparse(given)}){returned}"
    return line if len(line) <= 100 or drop_self else _broken(name, given, returned)


def _broken(name: str, given: ast.arguments, returned: str) -> str:
    parts = re.split(r", (?=\*|\w+(?::|=|$))", ast.unparse(given))
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _fields(cls: type) -> str:
    """Annotated names of the class body, with the comments that belong to them."""
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    body = ast.parse("\n".join(lines)).body[0]
    assert isinstance(body, ast.ClassDef)
    kept: list[str] = []
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id[0] == "_":
            continue
        first = node.lineno - 1
        while lines[first - 1].strip().startswith("#"):
            first -= 1
        kept += lines[first : node.end_lineno]
    return textwrap.dedent("\n".join(kept))


def _assigned(module: ModuleType, name: str) -> str:
    """The statement that makes it, where its module has one."""
    for home in (module, *(sys.modules[name] for name in HOMES)):
        source = inspect.getsource(home)
        for node in ast.parse(source).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
    raise LookupError(f"{name} of {module.__name__}: no statement makes it in any of {', '.join(HOMES)}")


def _fenced(text: str) -> str:
    return f"```python\n{text}\n```\n"
