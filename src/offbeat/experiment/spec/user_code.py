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

from offbeat.core.errors import ConfigError, unknown_name

COPIES = "code"  # in a run's folder


@dataclass(frozen=True)
class CodeReference:
    """A name in a file, which is meant wherever it is written."""

    path: Path  # whole
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    @property
    def relative(self) -> str:
        return f"{relative_path(self.path)}:{self.name}"


def is_reference(name: str) -> bool:
    """'mine.py:CosBuff'; also 'mine.py' alone, so that what is missing can be said."""
    return ".py:" in name or name.endswith(".py")


def parse_reference(text: str, home: Path | None = None, fits: Callable[[Any], bool] | None = None) -> CodeReference:
    """A relative path is meant from the folder of the experiment file it stands in, else from here. `fits`: what may
    be meant, where a file is named and nothing in it; without it, the file is not run to tell.
    """
    path, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
    whole = resolve_path(path, home)
    if not name.isidentifier():
        hint = f"write {path}:Name" if fits is None else _suggest_names(load_file(whole, home), path, fits)
        raise ConfigError(f"{text} names a file and nothing in it: {hint}")
    return CodeReference(whole, name)


def _suggest_names(module: ModuleType, path: str, fits: Callable[[Any], bool]) -> str:
    known = [name for name in defined_names(module) if fits(getattr(module, name))]
    return f"write {' or '.join(f'{path}:{name}' for name in known)}" if known else "it has nothing that fits"


def resolve_path(path: str, home: Path | None = None) -> Path:
    try:
        whole = ((home or Path()) / Path(path).expanduser()).resolve()
        whole.exists()  # which says what else is wrong with it: too long, say
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{path[:80]!r} is no path: {getattr(error, 'strerror', None) or error}") from None
    return whole


def relative_path(path: Path) -> str:
    """As one would write it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def load_object(reference: CodeReference, home: Path | None = None) -> Any:
    """What the file has under that name; `home` is where copies may lie."""
    module = load_file(reference.path, home)
    if reference.name not in vars(module):
        raise ConfigError(
            f"{relative_path(reference.path)}: {unknown_name('name', reference.name, defined_names(module))}"
        )
    return getattr(module, reference.name)


def defined_names(module: ModuleType) -> list[str]:
    """What a file defines itself, in its order."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]


@dataclass(frozen=True)
class _LoadedModule:
    digest: str  # of the file and its neighbours
    module: ModuleType
    path: Path  # where it was read: the file, or its copy


_modules: dict[Path, _LoadedModule] = {}


def load_file(path: Path, home: Path | None = None) -> ModuleType:
    """The file as a module: once, and again only if it or a neighbour was edited since."""
    there = _existing_path(path, home)
    source = _read_source(there)
    digest = _combined_digest([source, *map(_read_source, files_with_imports(there)[1:])])
    if path in _modules and _modules[path].digest == digest:
        _modules[path] = replace(_modules[path], path=there)
        return _modules[path].module
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
        _refresh_neighbours(there)
        exec(code, module.__dict__)
        _record_neighbours(there)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise (error if isinstance(error, ConfigError) else ConfigError(describe_error(error, there))) from None
    _modules[path] = _LoadedModule(digest, module, there)
    return module


def describe_error(error: BaseException, path: Path) -> str:
    """What a file's code raised, and in which of its lines."""
    line = _line_of_error(error, str(path))
    said = error.msg if isinstance(error, SyntaxError) else error
    return (
        f"{relative_path(path)}{f' line {line}' if line else ''}: {type(error).__name__}: {' '.join(str(said).split())}"
    )


def describe_user_error(error: BaseException) -> str | None:
    """The same of an error that somebody's own code raised, wherever it was noticed; None where it had no part."""
    loaded = {str(file) for kept in _modules.values() for file in files_with_imports(kept.path)}
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    mine = next((file for file in reversed(frames) if file in loaded), None)
    return None if mine is None else describe_error(error, Path(mine))


def files_with_imports(path: Path) -> list[Path]:
    """The file, and those beside or below it that it imports, by what its text says; missing ones are left out."""
    found, waiting = [], [path]
    while waiting:
        here = waiting.pop()
        if here in found or not here.is_file():
            continue
        found.append(here)
        for name in _imported_modules(_read_source(here), here.parent.relative_to(path.parent).parts):
            parts = path.parent.joinpath(*name.split("."))
            packages = [parent / "__init__.py" for parent in (parts, *parts.parents) if parent != path.parent]
            inside = [package for package in packages if package.is_relative_to(path.parent)]
            waiting += [parts.with_name(f"{parts.name}.py"), *inside]
    return [path, *sorted(set(found) - {path})]


def read_sources(paths: Iterable[Path]) -> dict[Path, bytes]:
    """What these files, which were loaded, and all that belongs to them hold."""
    held: dict[Path, bytes] = {}
    for path in paths:
        there = _modules[path].path
        held |= {path.parent / file.relative_to(there.parent): _read_source(file) for file in files_with_imports(there)}
    return held


def source_digests(held: Mapping[Path, bytes]) -> dict[str, str]:
    return {str(path): hashlib.sha256(source).hexdigest() for path, source in held.items()}


def copy_path(path: Path) -> Path:
    return Path(COPIES, *path.parts[1:])


def changed_files(before: Mapping[str, str], home: Path) -> list[Path]:
    """Which of a run's files are not what they were; one that is gone is as good as its copy."""
    now = source_digests({path: _read_source(_existing_path(path, home)) for path in map(Path, before)})
    return [Path(path) for path in before if now[path] != before[path]]


def _existing_path(path: Path, home: Path | None) -> Path:
    """The file, or the copy that a run keeps of one that is gone; that is remembered, wherever it is asked for."""
    if not path.exists() and home is not None and (copy := home.resolve() / copy_path(path)).is_file():
        return copy
    return _modules[path].path if path in _modules and not path.exists() else path


def _read_source(path: Path) -> bytes:
    if path.suffix != ".py" or not path.is_file():
        what = "is not a Python file" if path.exists() else "is not a Python file: there is no such file"
        raise ConfigError(f"{relative_path(path)} {what}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {relative_path(path)}: {error.strerror or error}") from None


def _combined_digest(sources: Iterable[bytes]) -> str:
    return hashlib.sha256("".join(hashlib.sha256(source).hexdigest() for source in sources).encode()).hexdigest()


@lru_cache(maxsize=256)
def _imported_modules(source: bytes, package: tuple[str, ...]) -> list[str]:
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


_neighbour_digests: dict[str, str] = {}  # module -> checksum of its file when it was imported


def _refresh_neighbours(path: Path) -> None:
    """Python knows one module of a name. An edited neighbour is imported again; one of the same name in another folder
    is refused, since nobody would notice whose is used.
    """
    ours, edited = [], False
    for neighbour, name in _neighbour_modules(path):
        other = getattr(sys.modules.get(name), "__file__", None)
        if other is None or not _is_user_file(Path(other)):
            continue
        ours.append(name)
        now = hashlib.sha256(_read_source(neighbour)).hexdigest()
        if _neighbour_digests.get(name) == now or (name not in _neighbour_digests and _has_digest(Path(other), now)):
            continue
        if Path(other).resolve() != neighbour:
            theirs = relative_path(Path(other))
            raise ConfigError(
                f"{relative_path(path)} imports {name}, and another {name} is loaded from {theirs}: rename one of them"
            )
        edited = True
    for name in ours if edited else ():  # all of them: one may have imported another
        del sys.modules[name]


def _record_neighbours(path: Path) -> None:
    for neighbour, name in _neighbour_modules(path):
        if name in sys.modules:
            _neighbour_digests[name] = hashlib.sha256(_read_source(neighbour)).hexdigest()


def _neighbour_modules(path: Path) -> list[tuple[Path, str]]:
    """With what they are called in an import."""
    inner = [(file, file.relative_to(path.parent).with_suffix("")) for file in files_with_imports(path)[1:]]
    return [(file, ".".join(parts.parts).removesuffix(".__init__")) for file, parts in inner]


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _is_user_file(path: Path) -> bool:
    """Neither of Python's own libraries nor installed: those are never hidden by a neighbour."""
    installed = any(part in ("site-packages", "dist-packages") for part in path.parts)
    return not installed and not path.resolve().is_relative_to(Path(os.__file__).resolve().parent)


def _line_of_error(error: BaseException, here: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == here:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == here]
    return lines[-1] if lines else None
