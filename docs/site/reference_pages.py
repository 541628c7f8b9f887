"""Generate the pages of docs/reference from help texts, settings and docstrings: run by `make docs`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import typer
from python_names import names_of
from run_files import COLUMNS, FACTS, FILES, ROW_KINDS

import offbeat.testing
from offbeat.cli import app, unescape_brackets
from offbeat.cli.list_command import KINDS, SHARED_PAGES, registry
from offbeat.core import protocol
from offbeat.core.about import paper_of
from offbeat.experiment.spec.choices import CHOICES
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.setting_docs import describe_settings
from offbeat.scenario.partition import Split
from offbeat.training.evaluation import Survey
from offbeat.training.trainer import Training

FOLDER = Path(__file__).resolve().parents[1] / "reference"
NOTICE = "<!-- generated from the code by make docs -->\n"


def rendered() -> dict[str, str]:
    pages: Mapping[str, Callable[[], Iterator[str]]] = {
        "verbs": verbs,
        "experiment": experiment,
        "choices": choices,
        "strategies": strategies,
        "python": python,
        "runs": runs,
    }
    return {
        name: NOTICE + "\n" + re.sub(r"\n{3,}", "\n\n", "\n".join(page())).rstrip() + "\n"
        for name, page in pages.items()
    }


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
        )
        + "\n"
    )


def code(text: str) -> str:
    return f"`{text}`" if text else ""


# ---------------------------------------------------------------- the command line


def verbs() -> Iterator[str]:
    yield "# Commands\n"
    yield (
        "The output of `offbeat COMMAND --help` for every command. Errors are one line on standard error. The exit "
        "status is 2 for\ninvalid input, 1 for failures and 130 for Ctrl-C.\n"
    )
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    yield table(
        ["command", "description"], [[f"[{n}](#offbeat-{n.replace(' ', '-')})", _first(c)] for n, c in _commands(root)]
    )
    for name, command in _commands(root):
        yield from _verb(name, command)


def _commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before}{name} ")
        elif not command.hidden:
            yield before + name, command


def _first(command: click.Command) -> str:
    return _prose(command.help or "").split("\n")[0].replace("\n", " ")


def _verb(name: str, command: click.Command) -> Iterator[str]:
    yield f"## offbeat {name}\n"
    context = click.Context(command, info_name=name)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"```text\noffbeat {name} {unescape_brackets(pieces)}\n```\n"
    yield _prose(command.help or "") + "\n"
    rows = []
    for given in command.params:
        if getattr(given, "hidden", False):
            continue
        rows.append([_written(given, context), unescape_brackets(getattr(given, "help", None) or "") + _default(given)])
    yield table(["argument or option", "meaning"], rows)


def _written(given: click.Parameter, context: click.Context) -> str:
    if isinstance(given, click.Argument):
        return code(unescape_brackets(given.make_metavar(context)))
    names = ", ".join([*given.opts, *given.secondary_opts])
    flag = getattr(given, "is_flag", False) or getattr(given, "count", False)
    return code(names if flag else f"{names} {unescape_brackets(given.make_metavar(context))}")


def _default(given: click.Parameter) -> str:
    value = given.default
    said = getattr(given, "help", None) or ""
    if value in (None, False, ()) or callable(value) or "[default" in said or isinstance(given, click.Argument):
        return ""
    return f" Default: `{value}`."


def _prose(text: str) -> str:
    """Paragraphs, each in one line."""
    return "\n\n".join(" ".join(part.split()) for part in unescape_brackets(inspect.cleandoc(text)).split("\n\n"))


# ---------------------------------------------------------------- experiments


def experiment() -> Iterator[str]:
    yield "# Fields of an experiment\n"
    yield (
        "An experiment file is YAML with these fields, all optional. `--set FIELD=VALUE` and `--set "
        "FIELD.SETTING=VALUE` change one\non the command line, `offbeat.Experiment(...)` sets them in Python, "
        "`offbeat run FILE --dry-run` "
        "prints the resolved values, and\n`offbeat new experiment NAME` writes a commented file.\n"
    )
    yield _settings(Experiment)
    yield (
        "For a field with several choices ([choices](choices.md), [strategies](strategies.md)), write the name, or a "
        "section with its\nsettings: `strategy: {name: fedbuff, k: 5}`. `FILE.py:Name`, relative to the file, is "
        "[your own code](../how-to/own-code.md).\n\n"
        "A file may also have `methods` for `offbeat compare`: a list (`[fedbuff(k=2), orthofl]`), or a mapping of "
        "labels to methods\n([settings in a comparison](../how-to/sweeps.md)).\n"
    )
    for name, section in {"training": Training, "split": Split, "survey": Survey}.items():
        yield f"## {name}\n"
        yield _prose(inspect.getdoc(section) or "") + "\n"
        yield _settings(section)
    yield "## until and target\n"
    yield (
        "`until` ends a run at the first of its limits: virtual seconds (`3600s`, `60m`, `2h`, `1d`), accepted "
        "updates (`500updates`), or\na metric on the evaluation grid (`3600s,acc=0.9`; never alone, because a run "
        "may not "
        "reach it). `target` (`acc=0.9`) does not\nend a run: tables show when it was reached.\n"
    )


def _settings(cls: type) -> str:
    rows = []
    for each in describe_settings(cls):
        default = "(required)" if each.default is None else code(each.default)
        rows.append([code(each.name), default, _plain(each.meaning), _plain(each.allowed)])
    return table(["name", "default", "meaning", "allowed values"], rows) if rows else "No settings.\n"


def _plain(text: str) -> str:
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "\\<")


def choices() -> Iterator[str]:
    yield "# Choices\n"
    yield "The output of `offbeat list KIND NAME`. [Worlds](../worlds.md) and [data](../data.md) explain them.\n"
    for kind, word in KINDS.items():
        if kind in ("strategies", "presets"):
            continue
        yield f"## {kind.capitalize()}\n"
        yield f"In an experiment: `{'data' if kind == 'datasets' else word}`.\n"
        for name, cls in registry(kind).items():
            yield from _choice(name, cls)
    yield "## Staleness\n"
    yield "A setting of many strategies: the weight of an update that is `u` versions old.\n"
    for name, cls in CHOICES["staleness"].items():
        yield from _choice(name, cls)


def _choice(name: str, cls: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield _plain(_prose(inspect.getdoc(cls) or "")) + "\n"
    yield _settings(cls)


def strategies() -> Iterator[str]:
    classes = registry("strategies")
    yield "# Strategies and their settings\n"
    yield (
        f"All {len(classes)} strategies, as printed by `offbeat list strategies NAME`. Each has [a "
        "page](../strategies/README.md) with its rule, its\ndeviations from the paper, and results. `fedbuff(k=5)` on "
        "the command line and in files is `offbeat.FedBuff(k=5)` in Python.\n"
    )
    yield table(
        ["name", "in Python", "mode", "server keeps per client", "client uploads"],
        [
            [f"[{n}](#{n})", code(c.__name__), *(str(getattr(c.about, k)) for k in ("mode", "keeps", "uploads"))]
            for n, c in classes.items()
        ],
    )
    for name, cls in classes.items():
        yield f"## {name}\n"
        yield f"{paper_of(cls)} [More](../strategies/{SHARED_PAGES.get(name, name)}.md).\n"
        yield _settings(cls)


# ---------------------------------------------------------------- Python and files


def python() -> Iterator[str]:
    yield "# Python\n"
    yield "The public names with their docstrings. [A study in Python](../how-to/python.md) shows how to use them.\n"
    methods = {cls.__name__ for cls in registry("strategies").values()}
    names = [
        n for n in offbeat.__all__ if n not in methods and not n.startswith("__") and n not in ("presets", "testing")
    ]
    yield "## offbeat\n"
    listed = ", ".join(map(code, sorted(methods)))
    yield f"Strategies, with [settings](strategies.md): {listed}.\n"
    yield from names_of(offbeat, names)
    yield "## offbeat.core.protocol\n"
    yield _prose(inspect.getdoc(protocol) or "") + "\n"
    yield from names_of(protocol, protocol.__all__)
    yield "## offbeat.testing\n"
    yield f"```text\n{inspect.getdoc(offbeat.testing)}\n```\n"
    yield from names_of(offbeat.testing, offbeat.testing.__all__)


def runs() -> Iterator[str]:
    yield "# Files of a run and tables of a trace\n"
    yield "A run is one folder that `offbeat show` and other programs can read.\n"
    yield table(["file", "content"], [[code(name), meaning] for name, meaning in FILES.items()])
    yield (
        "A comparison is a folder with one such folder for each method and seed (`fedbuff-seed0`), "
        "`comparison.json` (its methods and seeds), `figure.png`, `partition.png` and `report.html`.\n"
    )
    yield "## run.sqlite\n"
    yield (
        "`seq` numbers the rows of all tables in the order of events. Times are virtual seconds (in a live run:\n"
        "seconds since its start). Clients are numbers.\n"
    )
    for name, columns in COLUMNS.items():
        yield f"### {name}\n"
        yield table(["column", "content"], [[code(column), meaning] for column, meaning in columns.items()])
        if name == "trace":
            yield "Values of `kind`:\n"
            yield table(["kind", "event"], [[code(kind), meaning] for kind, meaning in ROW_KINDS.items()])
        if name == "facts":
            yield table(["key", "value"], [[code(key), meaning] for key, meaning in FACTS.items()])
    yield "[Read a trace](../how-to/reading-a-trace.md) shows queries.\n"


def write_pages() -> None:
    """Write every page to docs/reference."""
    for name, text in rendered().items():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
