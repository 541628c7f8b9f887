"""The command `offbeat show`: summarize runs and comparisons as text, figures, or files for papers and programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli import shared_options as options
from offbeat.cli.terminal import format_json, format_tables, print_json, print_tables, say
from offbeat.core.errors import ConfigError, DataError, OffbeatError, RunError, unknown_name

if TYPE_CHECKING:
    from offbeat.experiment import Comparison, Sweep
    from offbeat.experiment.run import Run
    from offbeat.metrics import Summary
    from offbeat.results import ComparisonResult, ResultTable, SingleRun


def show(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, comparisons, sweeps and saved simulations.")
    ],
    text_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="text|csv|latex|markdown|json",
            help="csv has one line per run and measure [default: text, or the format of the suffix of --out].",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to a file: .txt, .csv, .tex, .md, .json.")
    ] = None,
    reference: options.Reference = None,
    as_json: options.Json = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw instead of printing: FILE.pdf, .svg or .png, or FILE.html for a page."),
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="all|curves|staleness|timeline", help="The content of the figure.")
    ] = "all",
) -> None:
    """Summarize runs and comparisons, finished or in progress: means, intervals, differences, ranks."""
    import sqlite3

    from offbeat.results import ComparisonResult, open_result

    if figure is not None:
        if len(folders) != 1:
            raise ConfigError(f"--figure {figure}: give one folder, not {len(folders)}")
        if as_json or text_format is not None or out is not None:
            raise ConfigError(f"--figure {figure}: omit --json, --format and --out")
        _draw(folders[0], figure, kind, reference)
        return
    chosen = _choose_format(text_format, out, as_json)
    if len(folders) == 1 and chosen in ("text", "json") and (sweep := _read_sweep(folders[0], reference)):
        from offbeat.cli.sweep import format_sweep, print_sweep

        as_json = chosen == "json"
        return print_sweep(sweep, as_json) if out is None else _write(format_sweep(sweep, as_json), out)
    items: list[ComparisonResult | SingleRun] = []
    errors: list[Exception] = []
    for folder in dict.fromkeys(folders):
        try:
            items.append(open_result(folder, reference))
        except (OffbeatError, OSError, sqlite3.Error) as error:
            if len(folders) == 1:
                raise
            errors.append(error)
    if items and reference is not None and not any(isinstance(item, ComparisonResult) for item in items):
        raise ConfigError(f"--reference {reference}: {items[0].folder} is a single run without a comparison")
    if items:
        _print_warnings(items)
        command = ["offbeat", "show", *(item.folder for item in items), "--format", chosen]
        command += [] if reference is None else ["--reference", reference]
        _print_results(items, chosen, out, shlex.join(command))
    for problem in errors:
        say(f"offbeat: {' '.join(str(problem).split())}", err=True)
    if errors:
        raise typer.Exit(2 if any(isinstance(problem, (ConfigError, DataError)) for problem in errors) else 1)


def print_run(run: Run, as_json: bool) -> Summary:
    """Print the results of a run at its end."""
    from offbeat.results import SingleRun, open_result, result_json

    item = open_result(run.folder)
    assert isinstance(item, SingleRun)
    _print_warnings([item])
    if as_json:
        print_json(result_json(item))
    else:
        print_tables([_run_table(item)])
    return item.summary


def print_comparison(comparison: Comparison, as_json: bool, reference: str | None = None) -> None:
    """Write figure and page of a finished comparison, and print its table."""
    from offbeat.experiment import read_sweep
    from offbeat.results import ComparisonResult, report, result_json

    if (sweep := read_sweep(comparison)) is not None:
        from offbeat.cli.sweep import print_sweep

        return print_sweep(sweep, as_json, write=True)
    item = ComparisonResult(comparison, report.write_report(comparison, reference))
    if as_json:
        print_json(result_json(item))
        return
    _print_warnings([item])
    print_tables(_comparison_tables(item, arrows=False)[:1])
    _print_files(item)
    say(f"every seed, intervals, differences: {shlex.join(['offbeat', 'show', item.folder])}")


def result_tables(items: Sequence[ComparisonResult | SingleRun], arrows: bool = False) -> list[ResultTable]:
    """Return a list for a single run; else comparisons, then runs side by side, then ranks."""
    from offbeat.results import ComparisonResult, SingleRun, rank_results, rank_table, side_by_side_tables

    runs = [item for item in items if isinstance(item, SingleRun)]
    if len(items) == len(runs) == 1:
        return [_run_table(runs[0])]
    shown: list[ResultTable] = []
    for item in items:
        if isinstance(item, ComparisonResult):
            first, *more = _comparison_tables(item, arrows)
            title = ": ".join(filter(None, [item.folder, first.title]))
            shown += [first if len(items) == 1 else replace(first, title=title), *more]
    shown += side_by_side_tables(runs, arrows) if runs else []
    ranks = rank_results(items)
    return shown + ([rank_table(ranks)] if ranks else [])


def _read_sweep(folder: Path, reference: str | None) -> Sweep | None:
    """Read a sweep, which has its own table; in other formats it is a comparison of its combinations."""
    from offbeat.experiment import MANIFEST, Comparison, read_sweep

    sweep = read_sweep(Comparison(folder)) if (folder / MANIFEST).is_file() else None
    if sweep is not None and reference is not None:
        raise ConfigError(f"--reference {reference}: {folder} is a sweep, without speed-ups")
    return sweep


def _choose_format(text_format: str | None, out: Path | None, as_json: bool) -> str:
    """Return the format that is named, else that of the file's suffix."""
    from offbeat.experiment.run import RUN_ENTRIES
    from offbeat.results import FORMAT_OF_SUFFIX, FORMATS, RESULT_MARKERS

    if text_format is not None and text_format not in FORMATS:
        raise unknown_name("format", text_format, FORMATS)
    if as_json and text_format not in (None, "json"):
        raise ConfigError(f"--json and --format {text_format}: choose one of them")
    is_result = out is not None and any((out.parent / marker).is_file() for marker in RESULT_MARKERS)
    if out is not None and is_result and out.name in (*RUN_ENTRIES, *RESULT_MARKERS):
        raise ConfigError(f"--out {out} is a file of a run or comparison: choose another name")
    if text_format is not None or as_json:
        return text_format or "json"
    if out is None:
        return "text"
    if out.suffix not in FORMAT_OF_SUFFIX:
        suffixes = ", ".join(FORMAT_OF_SUFFIX)
        raise ConfigError(f"--out {out}: unknown format; give --format, or a name that ends in {suffixes}")
    return FORMAT_OF_SUFFIX[out.suffix]


def _print_results(
    items: Sequence[ComparisonResult | SingleRun], text_format: str, out: Path | None, command: str
) -> None:
    from offbeat.results import (
        ComparisonResult,
        csv_records,
        rank_results,
        ranks_json,
        result_digest,
        result_json,
        to_csv,
        to_latex,
        to_markdown,
    )

    if text_format == "text" and out is None:
        print_tables(result_tables(items))
        for item in items:
            if isinstance(item, ComparisonResult):
                _print_files(item)
        return
    if text_format == "json":
        results = [result_json(item) for item in items]
        ranks = rank_results(items)
        several = {"folders": results, "ranks": ranks and ranks_json(ranks)}
        text = format_json(results[0] if len(items) == 1 else several) + "\n"
    elif text_format == "csv":
        text = to_csv(record for item in items for record in csv_records(item))
    elif text_format == "text":
        text = format_tables(result_tables(items))
    else:
        about = [command, *(f"digest of {item.folder}: {result_digest(item)}" for item in items)]
        convert = to_latex if text_format == "latex" else to_markdown
        text = convert(result_tables(items, arrows=True), about)
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write(text, out)


def _write(text: str, out: Path) -> None:
    from offbeat.engine import write_atomically

    data = text.encode(errors="replace")
    write_atomically(out, data)
    say(f"{out} ({len(data)} bytes)")


def _draw(folder: Path, figure: Path, kind: str, reference: str | None) -> None:
    """Draw a figure or a page of a run or comparison, finished or not."""
    from offbeat.experiment import MANIFEST, Comparison
    from offbeat.experiment.run import Run
    from offbeat.results import report

    is_comparison = (folder / MANIFEST).is_file()
    if reference is not None and not is_comparison:
        raise ConfigError(f"--reference {reference}: {folder} is a single run without a comparison")
    try:
        report.draw_figure_or_page(Comparison(folder) if is_comparison else Run(folder), figure, kind, reference)
    except OSError as error:
        raise RunError(f"cannot write {figure}: {error.strerror or error}") from None
    say(f"figure: {figure}")


def _comparison_tables(item: ComparisonResult, arrows: bool) -> list[ResultTable]:
    from offbeat.results import comparison_table, seed_tables, unfinished_table

    shown, report = [], item.report
    if report.rows:
        shown.append(comparison_table(report.rows, report.summaries, report.planned, report.target, arrows))
        shown += seed_tables(report.rows, report.summaries, report.planned, report.reference, report.target)
    if report.unfinished:
        resume = shlex.join(["offbeat", item.comparison.verb, "--resume", item.folder])
        shown.append(unfinished_table(report.unfinished, resume))
    return shown


def _print_warnings(items: Sequence[ComparisonResult | SingleRun]) -> None:
    from offbeat.results import SingleRun

    for item in items:
        if isinstance(item, SingleRun):
            prefix = "" if len(items) == 1 else f"{item.folder}, "
            for line in item.summary.warnings:
                if line != item.summary.ended:  # the table contains it
                    say(f"warning: {prefix}{line}", err=True)
            continue
        for row in item.report.rows:
            for line in row.warnings:
                say(f"warning: {row.strategy}, {line}", err=True)


def _print_files(item: ComparisonResult) -> None:
    for name, path in (("figure", item.report.figure), ("report", item.report.page)):
        if path.is_file():
            say(f"{name}: {path}")


def _run_table(run: SingleRun) -> ResultTable:
    """Return a table with one name and value per line."""
    from offbeat.experiment.run import Run
    from offbeat.metrics import best_value
    from offbeat.results import ResultTable

    rows, summary = [["strategy", run.strategy]], run.summary
    if run.target is not None:
        curve = Run(Path(run.folder)).curve(run.target.metric)
        best = best_value(curve, summary.higher(run.target.metric))
        missed = f"not reached by {summary.seconds:.0f} s (best {best:.4f})"
        time = summary.time_to_target
        rows.append([f"time to {run.target}", missed if time is None else f"{time:.0f} s"])
    notes = () if summary.data is None else (f"data: {summary.data}",)  # prose, too long for a row
    return ResultTable(rows + _summary_rows(summary), run.folder, notes, kind="pairs")


def _summary_rows(summary: Summary) -> list[list[str]]:
    from offbeat.metrics import client_label, summary_lines, values_by_name

    rows = [["ended", summary.ended]]
    rows += [[name, f"{value:.4f}"] for name, value in summary.metrics.items()]
    if summary.evaluated == "clients":
        rows.append(["metrics are", "means over clients, each on its own test examples"])
    elif summary.evaluated == "sites":
        rows.append(["metrics are", "means over the sites' test examples"])
    values = [value for value in summary.by_client.values() if value == value]
    if values:
        spread = f"{min(values):.4f} / {sum(values) / len(values):.4f} / {max(values):.4f}"
        rows.append([f"{summary.headline} by client: low / mean / high", spread])
        rows.append(["clients evaluated on", f"their {summary.surveyed}"])
        for client, value in values_by_name(summary.by_client, summary.names):
            rows.append([f"{summary.headline} of {client_label(client, summary.names)}", f"{value:.4f}"])
    rows += summary_lines(summary)
    rows += [[f"{key}, mean of notes", f"{value:.4g}"] for key, value in summary.notes.items()]
    if summary.worker is not None:
        rows.append(["worker", summary.worker])
    if summary.client_memory is not None:
        rows.append(["memory for clients", summary.client_memory])
    return rows + [[f"refused: {reason}", str(count)] for reason, count in summary.refused.items()]
