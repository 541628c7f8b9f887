"""offbeat check: does a strategy of your own keep the laws?"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.options import Json

if TYPE_CHECKING:
    from offbeat.testing import Finding


def check(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE.py[:CLASS]", help="A file that defines a strategy; a class if it has several."),
    ],
    scripts: Annotated[int, typer.Option(min=1, help="Random event scripts a law is tried on.")] = 36,
    seed: Annotated[int, typer.Option(help="Of the scripts.")] = 0,
    as_json: Json = False,
) -> None:
    """Put your own strategy through the laws: losses, refusals, newcomers, save and resume at every event.

    Prints the smallest event script that breaks a law. Exit status 0: all kept; 1: some broken.
    """
    from offbeat.cli.output import print_json, say
    from offbeat.testing import check as check_laws

    broken = False
    report: dict[str, Any] = {}
    for cls in _strategies(file):
        findings = check_laws(_instance(cls), scripts=scripts, seed=seed)
        broken |= not all(f.passed for f in findings)
        if as_json:
            report[cls.__name__] = [_plain(f) for f in findings]
        else:
            say(f"{cls.__name__} on {scripts} scripts")
            for finding in findings:
                for line in str(finding).splitlines():
                    say(line)
    if as_json:
        print_json(report)
    if broken:
        raise typer.Exit(1)


def _plain(finding: Finding) -> dict[str, Any]:
    from offbeat.testing import show

    script = show(finding.script).splitlines() if finding.script else None
    return {
        "law": finding.law,
        "meaning": finding.meaning,
        "passed": finding.passed,
        "message": finding.message,
        "script": script,
    }


def _strategies(file: str) -> list[type]:
    from offbeat.core.errors import ConfigError, unknown

    path, _, wanted = file.partition(":")
    module = _load(Path(path))
    found = {
        name: cls
        for name, cls in vars(module).items()
        if isinstance(cls, type)
        and cls.__module__ == module.__name__
        and hasattr(cls, "init")
        and hasattr(cls, "on_event")
    }
    if not found:
        raise ConfigError(f"{path} defines no strategy: a class with init(world) and on_event(state, event)")
    if wanted and wanted not in found:
        raise unknown(f"strategy in {path}", wanted, found)
    return [found[wanted]] if wanted else list(found.values())


def _load(path: Path) -> ModuleType:
    from offbeat.core.errors import ConfigError

    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"{path} is not a Python file")
    name = f"offbeat_checks_{path.stem}"  # a name of its own: a file may well be called random.py
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # saved states name their classes by module
    sys.path.append(str(path.absolute().parent))  # it may import its neighbours, but not hide libraries from us
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        line = _line_in(error, path)
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(f"{path}{f' line {line}' if line else ''}: {type(error).__name__}: {reason}") from None
    return module


def _line_in(error: BaseException, path: Path) -> int | None:
    import traceback

    here = str(path.absolute())  # as the import system calls it
    if isinstance(error, SyntaxError) and error.filename == here:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == here]
    return lines[-1] if lines else None


def _instance(cls: type) -> Any:
    from offbeat.core.errors import ConfigError

    try:
        return cls()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{cls.__name__}() cannot be made ({reason}): every hyper-parameter needs a default that works"
        ) from None
