"""Code of one's own, written FILE.py:Name wherever an experiment chooses something by name.

A file is run once, under a module name made of its whole path: two files of one name do not clash, and a checkpoint
finds the classes of a state again. It may import its neighbours; those belong to it, and are summed and copied with
it. A run keeps copies below `code/`, each at its whole path: where the file itself is gone, its copy is run.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from offbeat.core.errors import ConfigError, unknown

COPIES = "code"  # in a run's folder


@dataclass(frozen=True)
class Reference:
    """A name in a file, which is meant wherever it is written."""

    path: Path  # whole
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    @property
    def shown(self) -> str:
        return f"{shown(self.path)}:{self.name}"


def is_reference(name: str) -> bool:
    """'mine.py:CosBuff'; also 'mine.py' alone, so that what is missing can be said."""
    return ".py:" in name or name.endswith(".py")


def parse(text: str, home: Path | None = None, fits: Callable[[Any], bool] | None = None) -> Reference:
    """A relative path is meant from the folder of the experiment file it stands in, else from here. `fits`: what may
    be meant, where a file is named and nothing in it; without it, the file is not run to tell.
    """
    path, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
    whole = resolved(path, home)
    if not name.isidentifier():
        hint = f"write {path}:Name" if fits is None else _fitting(load_file(whole, home), path, fits)
        raise ConfigError(f"{text} names a file and nothing in it: {hint}")
    return Reference(whole, name)


def _fitting(module: ModuleType, path: str, fits: Callable[[Any], bool]) -> str:
    known = [name for name in own_names(module) if fits(getattr(module, name))]
    return f"write {' or '.join(f'{path}:{name}' for name in known)}" if known else "it has nothing that fits"


def resolved(path: str, home: Path | None = None) -> Path:
    try:
        whole = ((home or Path()) / Path(path).expanduser()).resolve()
        whole.exists()  # which says what else is wrong with it: too long, say
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{path[:80]!r} is no path: {getattr(error, 'strerror', None) or error}") from None
    return whole


def shown(path: Path) -> str:
    """As one would write it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def load(reference: Reference, home: Path | None = None) -> Any:
    """What the file has under that name; `home` is where copies may lie."""
    module = load_file(reference.path, home)
    if reference.name not in vars(module):
        raise ConfigError(f"{shown(reference.path)}: {unknown('name', reference.name, own_names(module))}")
    return getattr(module, reference.name)


def own_names(module: ModuleType) -> list[str]:
    """What a file defines itself, in its order."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]


@dataclass(frozen=True)
class _Loaded:
    sum: str  # of the file and its neighbours
    module: ModuleType
    there: Path  # where it was read: the file, or its copy


_loaded: dict[Path, _Loaded] = {}


def load_file(path: Path, home: Path | None = None) -> ModuleType:
    """The file as a module: once, and again only if it or a neighbour was edited since."""
    there = _found(path, home)
    source = _bytes(there)
    digest = _sum([source, *map(_bytes, files_of(there)[1:])])
    if path in _loaded and _loaded[path].sum == digest:
        _loaded[path] = replace(_loaded[path], there=there)
        return _loaded[path].module
    name = f"offbeat_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, there)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    importlib.invalidate_caches()  # a neighbour may be new
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and saved states look their modules up
    if str(there.parent) not in sys.path:
        sys.path.append(str(there.parent))  # it may import its neighbours, but not hide libraries from us
    try:
        # not by the spec's loader: an edit within the same second would be overlooked by its cache
        code = compile(source, str(there), "exec")
        _make_way(there)
        exec(code, module.__dict__)
        _note_neighbours(there)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise (error if isinstance(error, ConfigError) else ConfigError(failure(error, there))) from None
    _loaded[path] = _Loaded(digest, module, there)
    return module


def failure(error: BaseException, path: Path) -> str:
    """What a file's code raised, and in which of its lines."""
    line = _line_in(error, str(path))
    said = error.msg if isinstance(error, SyntaxError) else error
    return f"{shown(path)}{f' line {line}' if line else ''}: {type(error).__name__}: {' '.join(str(said).split())}"


def blamed(error: BaseException) -> str | None:
    """The same of an error that somebody's own code raised, wherever it was noticed; None where it had no part."""
    loaded = {str(file) for kept in _loaded.values() for file in files_of(kept.there)}
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    mine = next((file for file in reversed(frames) if file in loaded), None)
    return None if mine is None else failure(error, Path(mine))


def files_of(path: Path) -> list[Path]:
    """The file, and those beside or below it that it imports, by what its text says; missing ones are left out."""
    found, waiting = [], [path]
    while waiting:
        here = waiting.pop()
        if here in found or not here.is_file():
            continue
        found.append(here)
        for name in _imported(_bytes(here), here.parent.relative_to(path.parent).parts):
            parts = path.parent.joinpath(*name.split("."))
            packages = [parent / "__init__.py" for parent in (parts, *parts.parents) if parent != path.parent]
            inside = [package for package in packages if package.is_relative_to(path.parent)]
            waiting += [parts.with_name(f"{parts.name}.py"), *inside]
    return [path, *sorted(set(found) - {path})]


def contents(paths: Iterable[Path]) -> dict[Path, bytes]:
    """What these files, which were loaded, and all that belongs to them hold."""
    held: dict[Path, bytes] = {}
    for path in paths:
        there = _loaded[path].there
        held |= {path.parent / file.relative_to(there.parent): _bytes(file) for file in files_of(there)}
    return held


def sums(held: Mapping[Path, bytes]) -> dict[str, str]:
    return {str(path): hashlib.sha256(source).hexdigest() for path, source in held.items()}


def copy_of(path: Path) -> Path:
    return Path(COPIES, *path.parts[1:])


def changed(before: Mapping[str, str], home: Path) -> list[Path]:
    """Which of a run's files are not what they were; one that is gone is as good as its copy."""
    now = sums({path: _bytes(_found(path, home)) for path in map(Path, before)})
    return [Path(path) for path in before if now[path] != before[path]]


def _found(path: Path, home: Path | None) -> Path:
    """The file, or the copy that a run keeps of one that is gone; that is remembered, wherever it is asked for."""
    if not path.exists() and home is not None and (copy := home.resolve() / copy_of(path)).is_file():
        return copy
    return _loaded[path].there if path in _loaded and not path.exists() else path


def _bytes(path: Path) -> bytes:
    if path.suffix != ".py" or not path.is_file():
        what = "is not a Python file" if path.exists() else "is not a Python file: there is no such file"
        raise ConfigError(f"{shown(path)} {what}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {shown(path)}: {error.strerror or error}") from None


def _sum(sources: Iterable[bytes]) -> str:
    return hashlib.sha256("".join(hashlib.sha256(source).hexdigest() for source in sources).encode()).hexdigest()


@lru_cache(maxsize=256)
def _imported(source: bytes, package: tuple[str, ...]) -> list[str]:
    """Modules a text of that package imports, in every way it can say it; `from a import b` may be of a.b."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # running it will say so
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


_neighbours: dict[str, str] = {}  # module -> checksum of its file when it was imported


def _make_way(path: Path) -> None:
    """Python knows one module of a name. An edited neighbour is imported again; one of the same name in another folder
    is refused, since nobody would notice whose is used.
    """
    ours, edited = [], False
    for neighbour, name in _neighbours_of(path):
        other = getattr(sys.modules.get(name), "__file__", None)
        if other is None or not _of_a_user(Path(other)):
            continue
        ours.append(name)
        now = hashlib.sha256(_bytes(neighbour)).hexdigest()
        if _neighbours.get(name) == now or (name not in _neighbours and _same(Path(other), now)):
            continue
        if Path(other).resolve() != neighbour:
            theirs = shown(Path(other))
            raise ConfigError(
                f"{shown(path)} imports {name}, and another {name} is loaded from {theirs}: rename one of them"
            )
        edited = True
    for name in ours if edited else ():  # all of them: one may have imported another
        del sys.modules[name]


def _note_neighbours(path: Path) -> None:
    for neighbour, name in _neighbours_of(path):
        if name in sys.modules:
            _neighbours[name] = hashlib.sha256(_bytes(neighbour)).hexdigest()


def _neighbours_of(path: Path) -> list[tuple[Path, str]]:
    """With what they are called in an import."""
    inner = [(file, file.relative_to(path.parent).with_suffix("")) for file in files_of(path)[1:]]
    return [(file, ".".join(parts.parts).removesuffix(".__init__")) for file, parts in inner]


def _same(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _of_a_user(path: Path) -> bool:
    """Neither of Python's own libraries nor installed: those are never hidden by a neighbour."""
    installed = any(part in ("site-packages", "dist-packages") for part in path.parts)
    return not installed and not path.resolve().is_relative_to(Path(os.__file__).resolve().parent)


def _line_in(error: BaseException, here: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == here:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == here]
    return lines[-1] if lines else None
