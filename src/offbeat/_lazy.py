"""Load the public names of a package when they are first used.

A package lists its public names in `__init__.pyi`, as imports from its modules. Type checkers read this file, and
`lazy_exports` makes the same names available at run time without importing the modules before they are needed.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path


def lazy_exports(package: str, init_file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the package whose `__init__.py` is `init_file`."""
    origins: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            origins |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}

    def load(name: str) -> object:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = origins[name]
        if module == package:
            return importlib.import_module(f"{module}.{original}")
        return getattr(importlib.import_module(module), original)

    names = sorted(origins)
    return load, lambda: names, names
