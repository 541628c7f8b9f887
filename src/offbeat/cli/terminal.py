"""Output of all commands: lines, JSON, tables, and a clean end after a signal."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import typer

from offbeat import metrics, results
from offbeat.cli import text_table
from offbeat.core.errors import escape_unprintable, format_count
from offbeat.experiment import spec

LOG_WIDTH = 200  # columns where the output is not a terminal


def say(text: object, err: bool = False) -> None:
    """Print one line; escape line breaks and control characters, since names and paths may contain them."""
    typer.echo(escape_unprintable(text), err=err)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    typer.echo(format_json(value))


def format_json(value: object) -> str:
    """Format a value as strict JSON, with null for NaN."""
    # json escapes all other control characters
    return json.dumps(metrics.without_nan(value), indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def print_experiment(
    experiment: spec.Experiment, as_json: bool, methods: Mapping[str, object] | None = None, seeds: Sequence[int] = ()
) -> None:
    """Print an experiment file; for a comparison, precede it by comments with methods and seeds."""
    if as_json:
        values = {name: spec.to_values(strategy, "strategy") for name, strategy in (methods or {}).items()}
        more = {} if methods is None else {"methods": values, "seeds": list(seeds)}
        print_json({"experiment": spec.to_values(experiment), **more})
        return
    if methods is not None:
        numbers = f"{format_count(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
        runs = format_count(len(methods) * len(seeds), "run")
        say(f"# {format_count(len(methods), 'method')} × {numbers}: {runs}")
        for name, strategy in methods.items():
            settings = {"name": spec.name_of("strategy", strategy), **spec.changed_settings(strategy)}
            say(f"#   {name}: {spec.to_yaml_line(settings)}")
    for line in spec.to_yaml(experiment).splitlines():
        say(line)


def print_table(rows: list[list[str]], left: bool = False, headings: bool = True) -> None:
    """Print a table with numbers on the right; `left`: text; without headings: pairs of name and text."""
    for line in _format_rows(rows, "pairs" if not headings else "prose" if left else "numbers", *_screen()):
        typer.echo(line)


def print_tables(tables: Sequence[results.ResultTable]) -> None:
    """Print tables that fit the terminal."""
    typer.echo(format_tables(tables, *_screen()), nl=False)


def format_tables(tables: Sequence[results.ResultTable], width: int = LOG_WIDTH, rule: bool = False) -> str:
    """Format tables with titles and notes, separated by blank lines."""
    parts = []
    for table in tables:
        above = [escape_unprintable(line) for line in (table.title, *table.lead) if line]
        notes = [line for note in table.notes for line in text_table.fold(escape_unprintable(note), width)]
        parts.append("\n".join([*above, *_format_rows(table.rows, table.kind, width, rule), *notes]) + "\n")
    return "\n".join(parts)


def _format_rows(rows: Sequence[Sequence[str]], kind: results.TableKind, width: int, rule: bool) -> list[str]:
    """Return the lines of a table that fits the width."""
    rows = [[escape_unprintable(cell) for cell in row] for row in rows]
    if kind == "pairs":
        return text_table.format_pairs(rows, width)
    return (text_table.format_prose if kind == "prose" else text_table.format_table)(rows, width, rule)


def _screen() -> tuple[int, bool]:
    """Return the width, and whether a rule is drawn below headings, which it is on terminals only."""
    if not sys.stdout.isatty():
        return LOG_WIDTH, False
    return shutil.get_terminal_size().columns, True


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM or a closed terminal sets, so that the command can end in order."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
