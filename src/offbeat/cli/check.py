"""The command `offbeat check`: check that your own strategy keeps the laws of strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import offbeat
from offbeat.cli import shared_options as options
from offbeat.cli.terminal import print_json, say
from offbeat.core.errors import ConfigError, unknown_name
from offbeat.experiment import spec

if TYPE_CHECKING:
    from offbeat.core.protocol import Strategy


def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:CLASS]", help="A file that defines a strategy; with a class if it has several."
        ),
    ],
    scripts: Annotated[int, typer.Option(min=1, help="Number of random event scripts for each law.")] = 36,
    seed: Annotated[int, typer.Option(help="Random seed of the scripts.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Test your own strategy with random losses, refusals and newcomers, and with save and resume at every event.

    Also check what experiment files and lists need. If a law is broken, print the shortest event script that breaks it
    and a remedy. Exit status 0: all laws hold; 1: some are broken.
    """
    broken = False
    report: dict[str, list[dict[str, object]]] = {}
    for reference, cls in _load_strategies(file).items():
        strategy = _instantiate(cls)
        findings = _check_strategy(reference, strategy, scripts, seed)
        broken |= not all(finding.passed for finding in findings)
        if as_json:
            report[cls.__name__] = [_finding_json(finding) for finding in findings]
            continue
        say(f"{cls.__name__} on {scripts} scripts")
        for line in (line for finding in findings for line in str(finding).splitlines()):
            say(line)
        for line in spec.suggest_improvements(strategy):
            say(f"advice  {line}")
    if as_json:
        print_json(report)
    if broken:
        raise typer.Exit(1)


def _check_strategy(reference: str, strategy: Strategy, scripts: int, seed: int) -> list[offbeat.testing.Finding]:
    """Check the laws, and the form that experiment files need."""
    remarks = spec.check_form(reference, strategy)  # before the laws, which may change a strategy that keeps values
    findings = offbeat.testing.check(strategy, scripts=scripts, seed=seed)
    for remark in remarks:
        findings.append(offbeat.testing.Finding(remark.rule, remark.meaning, remark.passed, 0, remark.message))
    return findings


def _finding_json(finding: offbeat.testing.Finding) -> dict[str, object]:
    """Return what the check of one law found, for JSON."""
    names = ("law", "meaning", "passed", "message", "cure")
    script = offbeat.testing.format_script(finding.script).splitlines() if finding.script else None
    return {**{name: getattr(finding, name) for name in names}, "script": script}


def _load_strategies(file: str) -> dict[str, type]:
    """Map FILE.py:Name to the strategy classes of a file."""
    path, _, wanted = file.rpartition(":") if ".py:" in file else (file, "", "")
    module = spec.load_file(spec.resolve_path(path))
    values = {name: getattr(module, name) for name in spec.defined_names(module)}
    classes = {
        name: value
        for name, value in values.items()
        if isinstance(value, type) and hasattr(value, "init") and hasattr(value, "on_event")
    }
    if not classes:
        raise ConfigError(f"{path} defines no strategy: a class with init(world) and on_event(state, event)")
    if wanted and wanted not in classes:
        raise unknown_name(f"strategy in {path}", wanted, classes)
    return {f"{path}:{name}": cls for name, cls in classes.items() if wanted in ("", name)}


def _instantiate(cls: type) -> Strategy:
    """Make a strategy with its default settings."""
    try:
        strategy: Strategy = cls()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{cls.__name__}() failed ({reason}): every hyper-parameter needs a default that works"
        ) from None
    return strategy
