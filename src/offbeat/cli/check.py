"""offbeat check: does a strategy of your own keep the laws?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.shared_options import Json

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

    Also looks at what experiment files and lists expect of it. Prints the smallest event script that breaks a law, and
    what would keep it. Exit status 0: all kept; 1: some broken.
    """
    from offbeat.cli.terminal import print_json, say
    from offbeat.experiment.spec import strategy_lint

    broken = False
    report: dict[str, Any] = {}
    for reference, cls in _strategies(file).items():
        strategy = _instance(cls)
        findings, advice = _findings(reference, strategy, scripts, seed), list(strategy_lint.advice(strategy))
        broken |= not all(f.passed for f in findings)
        if as_json:
            report[cls.__name__] = [_plain(f) for f in findings]
            continue
        say(f"{cls.__name__} on {scripts} scripts")
        for finding in findings:
            for line in str(finding).splitlines():
                say(line)
        for line in advice:
            say(f"advice  {line}")
    if as_json:
        print_json(report)
    if broken:
        raise typer.Exit(1)


def _findings(reference: str, strategy: Any, scripts: int, seed: int) -> list[Finding]:
    """Of the laws, and of its form."""
    from offbeat.experiment.spec import strategy_lint
    from offbeat.testing import Finding
    from offbeat.testing import check as check_laws

    formal = [Finding(r.rule, r.meaning, r.passed, 0, r.message) for r in strategy_lint.remarks(reference, strategy)]
    return [*check_laws(strategy, scripts=scripts, seed=seed), *formal]


def _plain(finding: Finding) -> dict[str, Any]:
    from offbeat.testing import show

    script = show(finding.script).splitlines() if finding.script else None
    return {
        "law": finding.law,
        "meaning": finding.meaning,
        "passed": finding.passed,
        "message": finding.message,
        "cure": finding.cure,
        "script": script,
    }


def _strategies(file: str) -> dict[str, type]:
    """FILE.py:Name -> the class."""
    from offbeat.core.errors import ConfigError, unknown
    from offbeat.experiment.spec import user_code

    path, _, wanted = file.rpartition(":") if ".py:" in file else (file, "", "")
    module = user_code.load_file(user_code.resolved(path))
    named = {name: getattr(module, name) for name in user_code.own_names(module)}
    found = {
        name: cls
        for name, cls in named.items()
        if isinstance(cls, type) and hasattr(cls, "init") and hasattr(cls, "on_event")
    }
    if not found:
        raise ConfigError(f"{path} defines no strategy: a class with init(world) and on_event(state, event)")
    if wanted and wanted not in found:
        raise unknown(f"strategy in {path}", wanted, found)
    return {f"{path}:{name}": cls for name, cls in found.items() if wanted in ("", name)}


def _instance(cls: type) -> Any:
    from offbeat.core.errors import ConfigError

    try:
        return cls()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{cls.__name__}() cannot be made ({reason}): every hyper-parameter needs a default that works"
        ) from None
