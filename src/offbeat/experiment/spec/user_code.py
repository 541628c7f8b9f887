"""User code, written FILE.py:Name wherever an experiment names a choice.

A file is executed once, as a module whose name is derived from its absolute path, so that equal file names do not
collide and checkpoints find their classes again. It may import modules beside or below it ("neighbours"), which are
hashed and copied together with it. A run folder stores copies in `code/` at their absolute paths; a copy is executed
if the original file is gone.
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

from offbeat.core.errors import ConfigError, unknown_name

COPIES = "code"  # folder within a run folder


@dataclass(frozen=True)
class CodeReference:
    """A name in a file."""

    path: Path  # absolute
    name: str

    def __str__(self) -> str:
        """Format the reference with the absolute path."""
        return f"{self.path}:{self.name}"

    @property
    def relative(self) -> str:
        """Return the reference with a path relative to the working folder."""
        return f"{relative_path(self.path)}:{self.name}"


def is_reference(name: str) -> bool:
    """Tell whether a name refers to a file: 'mine.py:CosBuff', or 'mine.py', which is incomplete."""
    return ".py:" in name or name.endswith(".py")


def parse_reference(
    text: str, folder: Path | None = None, is_valid: Callable[[object], bool] | None = None
) -> CodeReference:
    """Parse FILE.py:Name; a relative path starts at `folder`, the one of the experiment file.

    If the name is missing, the error suggests the objects for which `is_valid` is true. Without `is_valid`, the file
    is not executed.
    """
    path, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
    absolute = resolve_path(path, folder)
    if not name.isidentifier():
        names = ["Name"]
        if is_valid is not None:
            module = load_file(absolute, folder)
            names = [name for name in defined_names(module) if is_valid(getattr(module, name))]
        hint = " or ".join(f"{path}:{name}" for name in names)
        advice = f"write {hint}" if names else "it contains no suitable object"
        raise ConfigError(f"{text} names a file but no object in it: {advice}")
    return CodeReference(absolute, name)


def resolve_path(path: str, folder: Path | None = None) -> Path:
    """Make a path absolute; relative paths start at `folder`, by default the working folder."""
    try:
        absolute = ((folder or Path()) / Path(path).expanduser()).resolve()
        absolute.exists()  # raises for invalid paths, such as too long ones
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{path[:80]!r} is no valid path: {getattr(error, 'strerror', None) or error}") from None
    return absolute


def relative_path(path: Path) -> str:
    """Return the path relative to the working folder if it is below it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def load_object(reference: CodeReference, run_folder: Path | None = None) -> object:
    """Return the object with that name; `run_folder` may contain a copy of the file."""
    module = load_file(reference.path, run_folder)
    if reference.name not in vars(module):
        hint = unknown_name("name", reference.name, defined_names(module))
        raise ConfigError(f"{relative_path(reference.path)}: {hint}")
    value: object = getattr(module, reference.name)
    return value


def defined_names(module: ModuleType) -> list[str]:
    """List the public functions and classes that a file defines, in order."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]


@dataclass(frozen=True)
class _LoadedModule:
    """A file that was executed as a module."""

    digest: str  # of the file and its neighbours
    module: ModuleType
    path: Path  # the file, or the copy that was read


_modules: dict[Path, _LoadedModule] = {}


def load_file(path: Path, run_folder: Path | None = None) -> ModuleType:
    """Execute a file as a module; it is executed again only after it or a neighbour was edited."""
    existing = _existing_path(path, run_folder)
    source = _read_source(existing)
    sources = [source, *map(_read_source, files_with_imports(existing)[1:])]
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in sources)).hexdigest()
    if path in _modules and _modules[path].digest == digest:
        _modules[path] = replace(_modules[path], path=existing)
        return _modules[path].module
    name = f"offbeat_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, existing)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    importlib.invalidate_caches()  # a neighbour may be new
    previous = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and saved states look up their modules
    if str(existing.parent) not in sys.path:
        sys.path.append(str(existing.parent))  # last, so that neighbours do not hide libraries
    try:
        # not with the loader of the spec, whose cache misses edits within the same second
        code = compile(source, str(existing), "exec")
        _refresh_neighbours(existing)
        exec(code, module.__dict__)
        _record_neighbours(existing)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name)
        if previous is not None:
            sys.modules[name] = previous
        raise (error if isinstance(error, ConfigError) else ConfigError(describe_error(error, existing))) from None
    _modules[path] = _LoadedModule(digest, module, existing)
    return module


def describe_error(error: BaseException, path: Path) -> str:
    """Describe an error of a file's code with the number of the line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = lines[-1] if lines else None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    message = error.msg if isinstance(error, SyntaxError) else error
    where = f"{relative_path(path)} line {line}" if line else relative_path(path)
    return f"{where}: {type(error).__name__}: {' '.join(str(message).split())}"


def describe_user_error(error: BaseException) -> str | None:
    """Describe an error with its last line in user code; None if no user code was involved."""
    user_files = {str(file) for module in _modules.values() for file in files_with_imports(module.path)}
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    last = next((file for file in reversed(frames) if file in user_files), None)
    return None if last is None else describe_error(error, Path(last))


def files_with_imports(path: Path) -> list[Path]:
    """List the file and the neighbours that it imports according to its source, directly or indirectly."""
    files, waiting = set[Path](), [path]
    while waiting:
        current = waiting.pop()
        if current in files or not current.is_file():
            continue
        files.add(current)
        for name in _imported_modules(_read_source(current), current.parent.relative_to(path.parent).parts):
            parts = path.parent.joinpath(*name.split("."))
            packages = [parent / "__init__.py" for parent in (parts, *parts.parents) if parent != path.parent]
            inside = [package for package in packages if package.is_relative_to(path.parent)]
            waiting += [parts.with_name(f"{parts.name}.py"), *inside]
    return [path, *sorted(files - {path})]


def read_sources(paths: Iterable[Path]) -> dict[Path, bytes]:
    """Return the sources of loaded files and their neighbours, by the path of the original."""
    sources: dict[Path, bytes] = {}
    for path in paths:
        loaded = _modules[path].path
        files = files_with_imports(loaded)
        sources |= {path.parent / file.relative_to(loaded.parent): _read_source(file) for file in files}
    return sources


def source_digests(sources: Mapping[Path, bytes]) -> dict[str, str]:
    """Hash each source."""
    return {str(path): hashlib.sha256(source).hexdigest() for path, source in sources.items()}


def copy_path(path: Path) -> Path:
    """Return the path of a copy within a run folder."""
    return Path(COPIES, *path.parts[1:])


def changed_files(before: Mapping[str, str], run_folder: Path) -> list[Path]:
    """List files of a run with other digests than before; missing files are replaced by their copies."""
    now = source_digests({path: _read_source(_existing_path(path, run_folder)) for path in map(Path, before)})
    return [Path(path) for path in before if now[path] != before[path]]


def _existing_path(path: Path, run_folder: Path | None) -> Path:
    """Return the file, or if it is gone its copy in the run folder, or the copy that was loaded earlier."""
    if not path.exists() and run_folder is not None and (copy := run_folder.resolve() / copy_path(path)).is_file():
        return copy
    return _modules[path].path if path in _modules and not path.exists() else path


def _read_source(path: Path) -> bytes:
    """Read a Python file; raise ConfigError if that fails."""
    if path.suffix != ".py" or not path.is_file():
        reason = "is not a Python file" if path.exists() else "does not exist"
        raise ConfigError(f"{relative_path(path)} {reason}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {relative_path(path)}: {error.strerror or error}") from None


@lru_cache(maxsize=256)
def _imported_modules(source: bytes, package: tuple[str, ...]) -> list[str]:
    """List the modules that a source in that package imports; `from a import b` may import a.b."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # executing it reports the error
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


_neighbour_digests: dict[str, str] = {}  # module -> SHA-256 of its file when it was imported


def _refresh_neighbours(path: Path) -> None:
    """Make Python import edited neighbours again.

    A loaded module of the same name from another folder is an error, because Python would silently use it.
    """
    loaded, edited = [], False
    for neighbour, name in _neighbour_modules(path):
        other = getattr(sys.modules.get(name), "__file__", None)
        if other is None or not _is_user_file(Path(other)):
            continue
        loaded.append(name)
        now = hashlib.sha256(_read_source(neighbour)).hexdigest()
        if _neighbour_digests.get(name) == now or (name not in _neighbour_digests and _has_digest(Path(other), now)):
            continue
        if Path(other).resolve() != neighbour:
            loaded_from = relative_path(Path(other))
            raise ConfigError(
                f"{relative_path(path)} imports {name}, but another {name} is loaded from {loaded_from}: rename one"
            )
        edited = True
    for name in loaded if edited else ():  # all, because one may have imported another
        del sys.modules[name]


def _record_neighbours(path: Path) -> None:
    """Remember the digests of the imported neighbours."""
    for neighbour, name in _neighbour_modules(path):
        if name in sys.modules:
            _neighbour_digests[name] = hashlib.sha256(_read_source(neighbour)).hexdigest()


def _neighbour_modules(path: Path) -> list[tuple[Path, str]]:
    """Return neighbours with their module names."""
    relative = {file: file.relative_to(path.parent).with_suffix("") for file in files_with_imports(path)[1:]}
    return [(file, ".".join(module.parts).removesuffix(".__init__")) for file, module in relative.items()]


def _has_digest(path: Path, digest: str) -> bool:
    """Tell whether a file exists and has this SHA-256."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _is_user_file(path: Path) -> bool:
    """Tell whether a file is neither part of Python nor installed; neighbours never hide such modules."""
    installed = any(part in ("site-packages", "dist-packages") for part in path.parts)
    return not installed and not path.resolve().is_relative_to(Path(os.__file__).resolve().parent)
