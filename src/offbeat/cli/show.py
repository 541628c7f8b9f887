"""The command `offbeat show`: summarize runs and comparisons as text, figures, or files for papers and programs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from offbeat import engine, metrics, results
from offbeat import experiment as experiments
from offbeat.cli import shared_options as options
from offbeat.cli.terminal import format_json, format_tables, print_json, print_tables, say
from offbeat.core.errors import ConfigError, DataError, OffbeatError, RunError, unknown_name
from offbeat.experiment import run as run_folders


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
    if figure is not None:
        if len(folders) != 1:
            raise ConfigError(f"--figure {figure}: give one folder, not {len(folders)}")
        if as_json or text_format is not None or out is not None:
            raise ConfigError(f"--figure {figure}: omit --json, --format and --out")
        _draw_figure(folders[0], figure, kind, reference)
        return
    chosen = _choose_format(text_format, out, as_json)
    if len(folders) == 1 and chosen in ("text", "json") and (sweep := _read_sweep(folders[0], reference)):
        as_json = chosen == "json"
        if out is None:
            print_sweep(sweep, as_json)
        else:
            _write_file(format_sweep(sweep, as_json), out)
        return
    items: list[results.Result] = []
    errors: list[Exception] = []
    for folder in dict.fromkeys(folders):
        try:
            items.append(results.open_result(folder, reference))
        except (OffbeatError, OSError, sqlite3.Error) as error:
            if len(folders) == 1:
                raise
            errors.append(error)
    if items and reference is not None and not any(isinstance(item, results.ComparisonResult) for item in items):
        raise ConfigError(f"--reference {reference}: {items[0].folder} is a single run without a comparison")
    if items:
        _print_warnings(items)
        more = [] if reference is None else ["--reference", reference]
        command = options.format_command("show", *(item.folder for item in items), "--format", chosen, *more)
        _print_results(items, chosen, out, command)
    for problem in errors:
        say(f"offbeat: {' '.join(str(problem).split())}", err=True)
    if errors:
        raise typer.Exit(2 if any(isinstance(problem, (ConfigError, DataError)) for problem in errors) else 1)


def print_run(run: run_folders.Run, as_json: bool) -> metrics.Summary:
    """Print the results of a run at its end."""
    item = results.open_result(run.folder)
    assert isinstance(item, results.SingleRun)
    _print_warnings([item])
    if as_json:
        print_json(results.result_json(item))
    else:
        print_tables([_run_table(item)])
    return item.summary


def print_comparison(comparison: experiments.Comparison, as_json: bool, reference: str | None = None) -> None:
    """Write figure and page of a finished comparison, and print its table."""
    if (sweep := experiments.read_sweep(comparison)) is not None:
        return print_sweep(sweep, as_json, write=True)
    item = results.ComparisonResult(comparison, results.write_report(comparison, reference))
    if as_json:
        print_json(results.result_json(item))
        return
    _print_warnings([item])
    print_tables(_comparison_tables(item, arrows=False)[:1])
    _print_files(item)
    say(f"every seed, intervals, differences: {options.format_command('show', item.folder)}")


def print_sweep(sweep: experiments.Sweep, as_json: bool, write: bool = False) -> None:
    """Print the table of a sweep, finished or not; `write` also draws the figure."""
    combination_results = sweep.results()
    if write:
        results.save_sweep_figure(sweep, combination_results, sweep.figure)
    if as_json:
        print_json(results.sweep_json(sweep, combination_results))
        return
    for result in combination_results:
        for line in () if result.row is None else result.row.warnings:
            say(f"warning: {result.point.label}, {line}", err=True)
    print_tables([results.sweep_table(sweep, combination_results)])
    if sweep.figure.is_file():
        say(f"figure: {sweep.figure}")
    unfinished = sum(result.seeds - result.finished for result in combination_results)
    if unfinished:
        total = sum(result.seeds for result in combination_results)
        resume = options.format_command("sweep", "--resume", sweep.comparison.folder)
        say(f"{unfinished} of {total} runs are not finished; continue with: {resume}", err=True)


def format_sweep(sweep: experiments.Sweep, as_json: bool) -> str:
    """Return the table of a sweep as text or JSON for a file."""
    combination_results = sweep.results()
    if as_json:
        return format_json(results.sweep_json(sweep, combination_results)) + "\n"
    return format_tables([results.sweep_table(sweep, combination_results)])


def result_tables(items: Sequence[results.Result], arrows: bool = False) -> list[results.ResultTable]:
    """Return a list for a single run; else comparisons, then runs side by side, then ranks."""
    runs = [item for item in items if isinstance(item, results.SingleRun)]
    if len(items) == len(runs) == 1:
        return [_run_table(runs[0])]
    shown: list[results.ResultTable] = []
    for item in items:
        if isinstance(item, results.ComparisonResult):
            first, *more = _comparison_tables(item, arrows)
            title = ": ".join(filter(None, [item.folder, first.title]))
            shown += [first if len(items) == 1 else replace(first, title=title), *more]
    shown += results.side_by_side_tables(runs, arrows)
    ranks = results.rank_results(items)
    return shown + ([results.rank_table(ranks)] if ranks else [])


def _read_sweep(folder: Path, reference: str | None) -> experiments.Sweep | None:
    """Read a sweep, which has its own table; in other formats it is a comparison of its combinations."""
    is_comparison = (folder / experiments.MANIFEST).is_file()
    sweep = experiments.read_sweep(experiments.Comparison(folder)) if is_comparison else None
    if sweep is not None and reference is not None:
        raise ConfigError(f"--reference {reference}: {folder} is a sweep, without speed-ups")
    return sweep


def _choose_format(text_format: str | None, out: Path | None, as_json: bool) -> str:
    """Return the format that is named, else that of the file's suffix."""
    formats, markers = results.FORMAT_OF_SUFFIX, results.RESULT_MARKERS
    if text_format is not None and text_format not in results.FORMATS:
        raise unknown_name("format", text_format, results.FORMATS)
    if as_json and text_format not in (None, "json"):
        raise ConfigError(f"--json and --format {text_format}: choose one of them")
    is_result = out is not None and any((out.parent / marker).is_file() for marker in markers)
    if out is not None and is_result and out.name in (*run_folders.RUN_ENTRIES, *markers):
        raise ConfigError(f"--out {out} is a file of a run or comparison: choose another name")
    if text_format is not None or as_json:
        return text_format or "json"
    if out is None:
        return "text"
    if out.suffix not in formats:
        raise ConfigError(f"--out {out}: unknown format; give --format, or a name that ends in {', '.join(formats)}")
    return formats[out.suffix]


def _print_results(items: Sequence[results.Result], text_format: str, out: Path | None, command: str) -> None:
    """Print the results in a format, or write them to a file; `command` goes into the header of a document."""
    if text_format == "text" and out is None:
        print_tables(result_tables(items))
        for item in items:
            if isinstance(item, results.ComparisonResult):
                _print_files(item)
        return
    if text_format == "json":
        objects, ranks = [results.result_json(item) for item in items], results.rank_results(items)
        several = {"folders": objects, "ranks": ranks and results.ranks_json(ranks)}
        text = format_json(objects[0] if len(items) == 1 else several) + "\n"
    elif text_format == "csv":
        text = results.to_csv(record for item in items for record in results.csv_records(item))
    elif text_format == "text":
        text = format_tables(result_tables(items))
    else:
        about = [command, *(f"digest of {item.folder}: {results.result_digest(item)}" for item in items)]
        convert = results.to_latex if text_format == "latex" else results.to_markdown
        text = convert(result_tables(items, arrows=True), about)
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write_file(text, out)


def _write_file(text: str, out: Path) -> None:
    """Write text to a file, and print its name and size."""
    data = text.encode(errors="replace")
    engine.write_atomically(out, data)
    say(f"{out} ({len(data)} bytes)")


def _draw_figure(folder: Path, figure: Path, kind: str, reference: str | None) -> None:
    """Draw a figure or a page of a run or comparison, finished or not."""
    is_comparison = (folder / experiments.MANIFEST).is_file()
    if reference is not None and not is_comparison:
        raise ConfigError(f"--reference {reference}: {folder} is a single run without a comparison")
    result = experiments.Comparison(folder) if is_comparison else run_folders.Run(folder)
    try:
        results.draw_figure_or_page(result, figure, kind, reference)
    except OSError as error:
        raise RunError(f"cannot write {figure}: {error.strerror or error}") from None
    say(f"figure: {figure}")


def _comparison_tables(item: results.ComparisonResult, arrows: bool) -> list[results.ResultTable]:
    """Return the means, every seed, and the unfinished runs of a comparison."""
    shown, report = [], item.report
    if report.rows:
        shown.append(results.comparison_table(report, arrows))
        shown += results.seed_tables(report)
    if report.unfinished:
        resume = options.format_command(item.comparison.verb, "--resume", item.folder)
        shown.append(results.unfinished_table(report.unfinished, resume))
    return shown


def _print_warnings(items: Sequence[results.Result]) -> None:
    """Print the warnings about each run to standard error."""
    for item in items:
        if isinstance(item, results.SingleRun):
            prefix = "" if len(items) == 1 else f"{item.folder}, "
            # the table contains the end of the run
            lines = [f"{prefix}{line}" for line in item.summary.warnings if line != item.summary.ended]
        else:
            lines = [f"{row.strategy}, {line}" for row in item.report.rows for line in row.warnings]
        for line in lines:
            say(f"warning: {line}", err=True)


def _print_files(item: results.ComparisonResult) -> None:
    """Print the paths of figure and page if they exist."""
    for name, path in (("figure", item.report.figure), ("report", item.report.page)):
        if path.is_file():
            say(f"{name}: {path}")


def _run_table(run: results.SingleRun) -> results.ResultTable:
    """Return a table with one name and value per line."""
    rows, summary = [["strategy", run.strategy]], run.summary
    if run.target is not None:
        curve = run_folders.Run(Path(run.folder)).curve(run.target.metric)
        best = metrics.best_value(curve, summary.higher(run.target.metric))
        missed = f"not reached by {summary.seconds:.0f} s (best {best:.4f})"
        time = summary.time_to_target
        rows.append([f"time to {run.target}", missed if time is None else f"{time:.0f} s"])
    notes = () if summary.data is None else (f"data: {summary.data}",)  # prose, too long for a row
    return results.ResultTable(rows + _summary_rows(summary), run.folder, notes, kind="pairs")


def _summary_rows(summary: metrics.Summary) -> list[list[str]]:
    """Return name and value of everything that the summary of a run contains."""
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
        for client, value in metrics.values_by_name(summary.by_client, summary.names):
            label = metrics.client_label(client, summary.names)
            rows.append([f"{summary.headline} of {label}", f"{value:.4f}"])
    rows += metrics.summary_lines(summary)
    rows += [[f"{key}, mean of notes", f"{value:.4g}"] for key, value in summary.notes.items()]
    optional = {"worker": summary.worker, "memory for clients": summary.client_memory}
    rows += [[name, text] for name, text in optional.items() if text is not None]
    return rows + [[f"refused: {reason}", str(count)] for reason, count in summary.refused.items()]
