"""offbeat show: runs and comparisons in numbers, for people, papers and programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.figure_output import draw
from offbeat.cli.shared_options import FigureFile, FigureKind, Json, Reference

if TYPE_CHECKING:
    from offbeat.experiment.comparison import Comparison
    from offbeat.experiment.parameter_sweep import Sweep
    from offbeat.experiment.run.execution import Run
    from offbeat.metrics.trace_summary import Summary
    from offbeat.results.result_files import Compared
    from offbeat.results.tables import Single, Table


def show(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, comparisons, sweeps and saved simulations.")
    ],
    wanted: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="text|csv|latex|markdown|json",
            help="csv has a line for each run and measure [default: text, or what the suffix of --out says].",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to a file: .txt, .csv, .tex, .md, .json.")
    ] = None,
    reference: Reference = None,
    as_json: Json = False,
    figure: FigureFile = None,
    kind: FigureKind = "all",
) -> None:
    """Show what runs and comparisons amount to, finished or not: means and intervals over seeds, differences, ranks."""
    import sqlite3

    from offbeat.cli.terminal import say
    from offbeat.core.errors import ConfigError, DataError, OffbeatError
    from offbeat.results import result_files

    if figure is not None:
        if len(folders) != 1:
            raise ConfigError(f"--figure {figure}: of one folder at a time, {len(folders)} were given")
        if as_json or wanted is not None or out is not None:
            raise ConfigError(f"--figure {figure} is drawn alone: no --json, --format or --out with it")
        draw(folders[0], figure, kind, reference)
        return
    chosen = _chosen(wanted, out, as_json)
    if len(folders) == 1 and chosen in ("text", "json") and (swept := _sweep(folders[0], reference)):
        from offbeat.cli.sweep import in_file, print_sweep

        as_json = chosen == "json"
        return print_sweep(swept, as_json) if out is None else _write(in_file(swept, as_json), out)
    items: list[Compared | Single] = []
    wrong: list[Exception] = []
    for folder in dict.fromkeys(folders):
        try:
            items.append(result_files.opened(folder, reference))
        except (OffbeatError, OSError, sqlite3.Error) as error:
            if len(folders) == 1:
                raise
            wrong.append(error)
    if items and reference is not None and not any(isinstance(item, result_files.Compared) for item in items):
        raise ConfigError(f"--reference {reference}: {items[0].folder} is one run, there is nothing to compare it with")
    if items:
        _warn(items)
        command = ["offbeat", "show", *(item.folder for item in items), "--format", chosen]
        command += [] if reference is None else ["--reference", reference]
        _tell(items, chosen, out, shlex.join(command))
    for problem in wrong:
        say(f"offbeat: {' '.join(str(problem).split())}", err=True)
    if wrong:
        raise typer.Exit(2 if any(isinstance(problem, (ConfigError, DataError)) for problem in wrong) else 1)


def _sweep(folder: Path, reference: str | None) -> Sweep | None:
    """A sweep has a table of its own; in other formats it is a comparison of its combinations."""
    from offbeat.core.errors import ConfigError
    from offbeat.experiment import parameter_sweep
    from offbeat.experiment.comparison import MANIFEST, Comparison

    found = parameter_sweep.read(Comparison(folder)) if (folder / MANIFEST).is_file() else None
    if found is not None and reference is not None:
        raise ConfigError(f"--reference {reference}: {folder} is a sweep, without speed-ups")
    return found


def _chosen(wanted: str | None, out: Path | None, as_json: bool) -> str:
    """The format: as it is said, else as the file's name has it."""
    from offbeat.core.errors import ConfigError, unknown
    from offbeat.experiment.run import run_lock
    from offbeat.results.result_files import PARTS
    from offbeat.results.table_formats import FORMATS, SUFFIXES

    if wanted is not None and wanted not in FORMATS:
        raise unknown("format", wanted, FORMATS)
    if as_json and wanted not in (None, "json"):
        raise ConfigError(f"--json and --format {wanted}: choose one of them")
    if out is not None and any((out.parent / part).is_file() for part in PARTS) and out.name in (*run_lock.OWN, *PARTS):
        raise ConfigError(f"--out {out} is a file of what is shown: choose another name")
    if wanted is not None or as_json:
        return wanted or "json"
    if out is None:
        return "text"
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out {out}: which format? Give --format, or a name that ends in {', '.join(SUFFIXES)}")
    return SUFFIXES[out.suffix]


def _tell(items: Sequence[Compared | Single], chosen: str, out: Path | None, command: str) -> None:
    from offbeat.cli.terminal import in_json, in_text, print_tables
    from offbeat.results import result_files, table_formats

    if chosen == "text" and out is None:
        print_tables(tables_of(items))
        for item in items:
            if isinstance(item, result_files.Compared):
                _say_pictures(item)
        return
    if chosen == "json":
        ranks = result_files.ranked(items)
        several = {
            "folders": [result_files.plain(item) for item in items],
            "ranks": ranks and result_files.plain_ranks(ranks),
        }
        made = in_json(result_files.plain(items[0]) if len(items) == 1 else several) + "\n"
    elif chosen == "csv":
        made = table_formats.tidy(record for item in items for record in result_files.records(item))
    elif chosen == "text":
        made = in_text(tables_of(items))
    else:
        about = [command, *(f"digest of {item.folder}: {result_files.digest(item)}" for item in items)]
        made = (table_formats.latex if chosen == "latex" else table_formats.markdown)(
            tables_of(items, arrows=True), about
        )
    if out is None:
        typer.echo(made, nl=False)
    else:
        _write(made, out)


def _write(text: str, out: Path) -> None:
    from offbeat.cli.terminal import say
    from offbeat.engine.checkpoint import write_whole

    data = text.encode(errors="replace")
    write_whole(out, data)
    say(f"{out} ({len(data)} bytes)")


def tables_of(items: Sequence[Compared | Single], arrows: bool = False) -> list[Table]:
    """A run by itself is a list; comparisons come first, then runs beside each other, then ranks."""
    from dataclasses import replace

    from offbeat.results import result_files, tables

    singles = [item for item in items if isinstance(item, tables.Single)]
    if len(items) == len(singles) == 1:
        return [_list(singles[0])]
    made: list[Table] = []
    for item in items:
        if isinstance(item, result_files.Compared):
            first, *more = _of_comparison(item, arrows)
            title = ": ".join(filter(None, [item.folder, first.title]))
            made += [first if len(items) == 1 else replace(first, title=title), *more]
    made += tables.beside(singles, arrows) if singles else []
    ranks = result_files.ranked(items)
    return made + ([tables.ranked(ranks)] if ranks else [])


def _of_comparison(item: Compared, arrows: bool) -> list[Table]:
    from offbeat.results import tables

    made, found = [], item.report
    if found.rows:
        made.append(tables.main(found.rows, found.found, found.planned, found.target, arrows))
        made += tables.over_seeds(found.rows, found.found, found.planned, found.reference, found.target)
    if found.going:
        made.append(
            tables.unfinished(found.going, shlex.join(["offbeat", item.comparison.verb, "--resume", item.folder]))
        )
    return made


def _list(run: Single) -> Table:
    """One run: a name and a number a line."""
    from offbeat.results.tables import Table

    data = run.summary.data  # prose, too long for a table
    return Table(_lines(run), run.folder, () if data is None else (f"data: {data}",), kind="pairs")


def _warn(items: Sequence[Compared | Single]) -> None:
    """Of what nobody should have to find in a table."""
    from offbeat.cli.terminal import say
    from offbeat.results.tables import Single

    for item in items:
        if isinstance(item, Single):
            where = "" if len(items) == 1 else f"{item.folder}, "
            for line in item.summary.warnings:
                if line != item.summary.ended:  # which stands in the table
                    say(f"warning: {where}{line}", err=True)
            continue
        for row in item.report.rows:
            for line in row.warnings:
                say(f"warning: {row.strategy}, {line}", err=True)


# ---------------------------------------------------------------- what other verbs print at their end


def print_run(run: Run, as_json: bool) -> Summary:
    from offbeat.cli.terminal import print_json, print_tables
    from offbeat.results import result_files
    from offbeat.results.tables import Single

    item = result_files.opened(run.folder)
    assert isinstance(item, Single)
    _warn([item])
    if as_json:
        print_json(result_files.plain(item))
    else:
        print_tables([_list(item)])
    return item.summary


def print_comparison(comparison: Comparison, as_json: bool, reference: str | None = None) -> None:
    """When all of it is finished: the table, the figure and the page."""
    from offbeat.cli.terminal import print_json, print_tables, say
    from offbeat.experiment import parameter_sweep
    from offbeat.results import report, result_files

    if (swept := parameter_sweep.read(comparison)) is not None:
        from offbeat.cli.sweep import print_sweep

        return print_sweep(swept, as_json, write=True)
    item = result_files.Compared(comparison, report.write(comparison, reference))
    if as_json:
        print_json(result_files.plain(item))
        return
    _warn([item])
    print_tables(_of_comparison(item, arrows=False)[:1])
    _say_pictures(item)
    say(f"every seed, intervals, differences: {shlex.join(['offbeat', 'show', item.folder])}")


def _say_pictures(item: Compared) -> None:
    from offbeat.cli.terminal import say

    for name, path in (("figure", item.report.figure), ("report", item.report.page)):
        if path.is_file():
            say(f"{name}: {path}")


def _lines(run: Single) -> list[list[str]]:
    from offbeat.experiment.run.execution import Run
    from offbeat.metrics import curves

    lines, s = [["strategy", run.strategy]], run.summary
    if run.target is not None:
        best = curves.best(Run(Path(run.folder)).curve(run.target.metric), s.higher(run.target.metric))
        reached = (
            f"{s.time_to_target:.0f} s"
            if s.time_to_target is not None
            else f"not reached by {s.seconds:.0f} s (best {best:.4f})"
        )
        lines.append([f"time to {run.target}", reached])
    return lines + _numbers(s)


def _numbers(s: Summary) -> list[list[str]]:
    from offbeat.metrics import measures
    from offbeat.metrics.client_names import called, named

    lines = [["ended", s.ended]]
    lines += [[name, f"{value:.4f}"] for name, value in s.metrics.items()]
    if s.evaluated == "clients":
        lines.append(["these are", "means over clients, each on its own test examples"])
    elif s.evaluated == "sites":
        lines.append(["these are", "means over the sites' test examples"])
    values = [value for value in s.by_client.values() if value == value]
    if values:
        spread = f"{min(values):.4f} / {sum(values) / len(values):.4f} / {max(values):.4f}"
        lines += [
            [f"{s.headline} by client: low / mean / high", spread],
            ["clients evaluated on", f"their {s.surveyed}"],
        ]
        lines += [[f"{s.headline} of {called(c, s.names)}", f"{v:.4f}"] for c, v in named(s.by_client, s.names)]
    lines += measures.lines(s)
    lines += [[f"{key}, as noted: mean", f"{value:.4g}"] for key, value in s.notes.items()]
    if s.worker is not None:
        lines.append(["computed by", s.worker])
    if s.client_memory is not None:
        lines.append(["memory for clients", s.client_memory])
    return lines + [[f"refused: {reason}", str(count)] for reason, count in s.refused.items()]
