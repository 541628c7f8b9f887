"""Tables and JSON: what every verb prints in the same way."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from offbeat.experiment.spec.config import Experiment
    from offbeat.results.tables import Kind, Table

LOG = 200  # the width of what is no terminal


def say(text: object, err: bool = False) -> None:
    """One line, whatever was in the text: names, reasons and paths come from others."""
    from offbeat.core.errors import printable

    typer.echo(printable(text), err=err)


def print_json(value: Any) -> None:
    typer.echo(in_json(value))


def in_json(value: Any) -> str:
    """Strict JSON: what is not a number becomes null."""
    from offbeat.metrics.trace_summary import without_nan

    # the rest it escapes itself
    return json.dumps(without_nan(value), indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def print_experiment(
    experiment: Experiment, as_json: bool, methods: Mapping[str, Any] | None = None, seeds: Sequence[int] = ()
) -> None:
    """An experiment as a file has it; of a comparison, its methods and seeds in front, as comments."""
    from offbeat.core.errors import counted
    from offbeat.experiment.spec import experiment_files
    from offbeat.experiment.spec.choices import name_of
    from offbeat.experiment.spec.serialization import to_plain
    from offbeat.experiment.spec.setting_docs import changes, written

    if as_json:
        plain = {name: to_plain(strategy, "strategy") for name, strategy in (methods or {}).items()}
        more = {} if methods is None else {"methods": plain, "seeds": list(seeds)}
        print_json({"experiment": to_plain(experiment), **more})
        return
    if methods is not None:
        count = f"{counted(len(methods), 'method')} × {counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
        say(f"# {count}: {counted(len(methods) * len(seeds), 'run')}")
        for name, strategy in methods.items():
            say(f"#   {name}: {written({'name': name_of('strategy', strategy), **changes(strategy)})}")
    for line in experiment_files.dump(experiment).splitlines():
        say(line)


def print_table(rows: list[list[str]], left: bool = False, headings: bool = True) -> None:
    """Numbers stand on the right, `left` is for text; without headings, names and what there is to tell of them."""
    for line in _lines(rows, "pairs" if not headings else "prose" if left else "numbers", *_screen()):
        typer.echo(line)


def print_tables(tables: Sequence[Table]) -> None:
    typer.echo(in_text(tables, *_screen()), nl=False)


def in_text(tables: Sequence[Table], width: int = LOG, rule: bool = False) -> str:
    """Tables with their titles and notes, a blank line between two."""
    from offbeat.cli import text_table
    from offbeat.core.errors import printable

    parts = []
    for table in tables:
        above = [line for line in (table.title, *table.lead) if line]
        made = _lines(table.rows, table.kind, width, rule)
        notes = [line for note in table.notes for line in text_table.fold(printable(note), width)]
        parts.append("\n".join([*map(printable, above), *made, *notes]) + "\n")
    return "\n".join(parts)


def _lines(rows: Sequence[Sequence[str]], kind: Kind, width: int, rule: bool) -> list[str]:
    from offbeat.cli import text_table
    from offbeat.core.errors import printable

    rows = [[printable(cell) for cell in row] for row in rows]
    if kind == "pairs":
        return text_table.pairs(rows, width)
    return (text_table.prose if kind == "prose" else text_table.table)(rows, width, rule)


def _screen() -> tuple[int, bool]:
    """How wide it is, and whether it is one: a log has no width of its own, and no rules are drawn in it."""
    if not sys.stdout.isatty():
        return LOG, False
    return shutil.get_terminal_size().columns, True
