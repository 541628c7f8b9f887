"""Tables, JSON and progress bars: what every verb prints in the same way."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from offbeat.engines.progress import Status
    from offbeat.engines.workers.counted import Work
    from offbeat.experiment.config import Experiment
    from offbeat.experiment.tables import Kind, Table

LOG = 200  # the width of what is no terminal
EVERY = 60.0  # seconds between two lines of progress where there is no terminal


def say(text: object, err: bool = False) -> None:
    """One line, whatever was in the text: names, reasons and paths come from others."""
    from offbeat.core.errors import printable

    typer.echo(printable(text), err=err)


def print_json(value: Any) -> None:
    typer.echo(in_json(value))


def in_json(value: Any) -> str:
    """Strict JSON: what is not a number becomes null."""
    from offbeat.experiment.metrics import without_nan

    # the rest it escapes itself
    return json.dumps(without_nan(value), indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def print_experiment(
    experiment: Experiment, as_json: bool, methods: Mapping[str, Any] | None = None, seeds: Sequence[int] = ()
) -> None:
    """An experiment as a file has it; of a comparison, its methods and seeds in front, as comments."""
    from offbeat.experiment import files
    from offbeat.experiment.choices import name_of
    from offbeat.experiment.described import changes, written
    from offbeat.experiment.plain import to_plain

    if as_json:
        plain = {name: to_plain(strategy, "strategy") for name, strategy in (methods or {}).items()}
        more = {} if methods is None else {"methods": plain, "seeds": list(seeds)}
        print_json({"experiment": to_plain(experiment), **more})
        return
    if methods is not None:
        count = f"{len(methods)} methods × {len(seeds)} seeds ({', '.join(map(str, seeds))})"
        say(f"# {count}: {len(methods) * len(seeds)} runs")
        for name, strategy in methods.items():
            say(f"#   {name}: {written({'name': name_of('strategy', strategy), **changes(strategy)})}")
    for line in files.dump(experiment).splitlines():
        say(line)


def print_table(rows: list[list[str]], left: bool = False, headings: bool = True) -> None:
    """Numbers stand on the right, `left` is for text; without headings, names and what there is to tell of them."""
    for line in _lines(rows, "pairs" if not headings else "prose" if left else "numbers", *_screen()):
        typer.echo(line)


def print_tables(tables: Sequence[Table]) -> None:
    typer.echo(in_text(tables, *_screen()), nl=False)


def in_text(tables: Sequence[Table], width: int = LOG, rule: bool = False) -> str:
    """Tables with their titles and notes, a blank line between two."""
    from offbeat.cli import columns
    from offbeat.core.errors import printable

    parts = []
    for table in tables:
        above = [line for line in (table.title, *table.lead) if line]
        made = _lines(table.rows, table.kind, width, rule)
        notes = [line for note in table.notes for line in columns.fold(printable(note), width)]
        parts.append("\n".join([*map(printable, above), *made, *notes]) + "\n")
    return "\n".join(parts)


def _lines(rows: Sequence[Sequence[str]], kind: Kind, width: int, rule: bool) -> list[str]:
    from offbeat.cli import columns
    from offbeat.core.errors import printable

    rows = [[printable(cell) for cell in row] for row in rows]
    if kind == "pairs":
        return columns.pairs(rows, width)
    return (columns.prose if kind == "prose" else columns.table)(rows, width, rule)


def _screen() -> tuple[int, bool]:
    """How wide it is, and whether it is one: a log has no width of its own, and no rules are drawn in it."""
    if not sys.stdout.isatty():
        return LOG, False
    return shutil.get_terminal_size().columns, True


@contextmanager
def run_progress(total: str) -> Iterator[Callable[[Status], None] | None]:
    """A bar for one run: virtual time, updates a second, metrics, staleness. Nothing when not on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from offbeat.core.errors import printable

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    began, drawn, before = time.monotonic(), 0.0, -1
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"0 of {total}", total=1.0)

        def watch(status: Status) -> None:
            nonlocal drawn, before
            if before < 0:
                before = status.updates  # a resumed run did these earlier
            if time.monotonic() - drawn < 0.1:
                return
            drawn = time.monotonic()
            # loss and what a table shows
            measured = " ".join(f"{k} {v:.3f}" for k, v in list(status.metrics.items())[:2])
            age = f" staleness {status.age:.1f}" if status.age is not None else ""
            rate = (status.updates - before) / max(drawn - began, 1e-9)
            text = f"{status.now:.0f} s of {total}, {status.updates} updates ({rate:.0f}/s) {measured}{age}"
            bar.update(task, completed=status.share, description=printable(text))

        yield watch


@contextmanager
def runs_progress(names: list[str]) -> Iterator[Callable[[list[float], Work], None]]:
    """A bar over several runs: how many are done, steps a second, jobs at a time. When not on a terminal, a line now
    and then.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from offbeat.core.errors import printable

    console = Console(stderr=True)
    began = told = time.monotonic()

    def state(shares: list[float], work: Work) -> str:
        done, rate = sum(share >= 1 for share in shares), work.steps / max(time.monotonic() - began, 1e-9)
        together = f", {work.jobs / work.batches:.1f} jobs a batch" if work.jobs > work.batches else ""
        return f"{done} of {len(names)} runs, {rate:,.0f} steps/s{together}"

    if not console.is_terminal:

        def tell(shares: list[float], work: Work) -> None:
            nonlocal told
            if time.monotonic() - told >= EVERY:
                told = time.monotonic()
                say(f"{state(shares, work)}, {sum(shares) / len(shares):.0%}", err=True)

        yield tell
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"0 of {len(names)} runs", total=float(len(names)))

        def watch(shares: list[float], work: Work) -> None:
            going = [printable(name) for name, share in zip(names, shares, strict=True) if 0 < share < 1]
            text = f"{state(shares, work)}, now {', '.join(going) or 'starting'}"
            bar.update(task, completed=sum(shares), description=text)

        yield watch
