"""The command `offbeat reproduce`: compare a paper's table with our results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from offbeat import papers, presets
from offbeat.cli import shared_options as options
from offbeat.cli.compare import execute_runs
from offbeat.cli.terminal import print_table, say
from offbeat.core.errors import ConfigError, DataError, RunError, unknown_name

MAX_LISTED_ENTRIES = 5


def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER|PAPER/TABLE",
            help="A paper (orthofl, aso_fed, fedpsa, fed_ogd, fedcompass), or a prefix of its presets: "
            "fedcompass/table1 [default, with --list: all].",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="quick|paper",
            help="quick: minutes, a subset (all with --all), synthetic data where missing. paper: full size, real data "
            "only.",
        ),
    ] = "quick",
    seeds: options.Seeds = None,
    until: options.Until = None,
    worker: options.Worker = None,
    jobs: options.Jobs = None,
    store: Annotated[Path, typer.Option(metavar="DIR", help="Folder that stores the runs.")] = Path(
        "runs/reproductions"
    ),
    into: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Copy the finished runs below DIR into the store, for example from another machine. Nothing is "
            "overwritten. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the pages [default: in the store].")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="At quick scale, run every entry, which may take hours.")
    ] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Run nothing; write the pages of the stored runs.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print the entries and the stored runs, and exit.")] = False,
    data: options.DataFolder = None,
) -> None:
    """Run the missing experiments of a paper's table, and write a page with the paper's numbers beside ours.

    The store keeps finished runs, which are never repeated, so a table can be built in several steps.
    """
    options.use_data(data)
    if scale not in get_args(presets.Scale):
        raise unknown_name("scale", scale, get_args(presets.Scale))
    options.check_execution_options(worker)
    options.check_until(until)
    pages = store if out is None else out
    _check_folder("--store", store)
    _check_folder("--out", pages)
    run_store = papers.ReproductionStore(store)
    if what is not None and what in presets.names() and "/" not in what:
        raise ConfigError(f"{what!r} belongs to no paper: run it with 'offbeat compare {what}'")
    if listed:
        names = [what] if what is not None else list(papers.load_papers())
        _print_entries([entry for name in names for entry in papers.find_entries(name)[1]], run_store)
        return
    if what is None:
        raise ConfigError(f"give a paper or one of its tables: {', '.join(papers.load_papers())}, fedcompass/table1")
    paper, entries = papers.find_entries(what)
    for folder in into or []:
        _import_runs(run_store, folder)
    failed = False
    if stored:
        if not store.is_dir():
            raise ConfigError(f"the store {store} does not exist: name it with --store, or omit --stored")
        run_options = {"all": every or None, "jobs": jobs, "seeds": seeds, "until": until, "worker": worker}
        if unused := [f"--{name}" for name, value in run_options.items() if value is not None]:
            options.warn([f"--stored runs nothing and ignores {' and '.join(unused)}"])
    else:
        settings = _choose_settings(what, entries, cast("presets.Scale", scale), until, every)
        failed = _run_missing(settings, run_store, seeds, worker, jobs)
    evaluated = papers.evaluate_entries(paper.entries, run_store)
    options.warn(f"not shown: {line}" for each in evaluated for line in each.skipped)
    path, unchanged = papers.write_page(paper, evaluated, pages)
    if unchanged:
        places = list(dict.fromkeys(place for place, _ in unchanged))
        shown = "; ".join(places[:MAX_LISTED_ENTRIES]) + ("; …" if len(places) > MAX_LISTED_ENTRIES else "")
        options.warn([f"{path} keeps entries with more runs than {store} has: {shown}"])
    measured = [each for each in evaluated if each.entry in entries and isinstance(each, papers.MeasuredEntry)]
    if written := [each for each in measured if papers.entry_key(each.entry) not in unchanged]:
        rows = [[each.entry.where, each.entry.quantity.title, each.verdict, each.size] for each in written]
        print_table([["in the paper", "measured", "verdict", "size"], *rows], left=True)
    say(f"page: {path}")
    if failed:
        raise typer.Exit(1)


def _check_folder(option: str, path: Path) -> None:
    """Check before any run that results can be written to a folder."""
    if path.is_symlink() and not path.exists():
        raise ConfigError(f"{option} {path} is a broken link; name a folder")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{option} {path} is a file; name a folder")


def _choose_settings(
    what: str, entries: Sequence[papers.Entry], scale: presets.Scale, until: str | None, every: bool
) -> list[papers.PaperSetting]:
    """Return the settings to run, and warn about those without data."""
    if every or scale != "quick" or any(entry.preset == what for entry in entries):
        chosen = entries
    else:
        chosen = [entry for entry in entries if entry.in_quick_subset] or entries
    if len(chosen) < len(entries):
        options.warn(
            [f"quick: {len(chosen)} of {len(entries)} entries are run; use --all, or the full name of a preset"]
        )
    settings = []
    for preset in dict.fromkeys(entry.preset for entry in chosen if entry.preset is not None):
        try:
            setting, missing = papers.choose_setting(preset, scale, until)
        except DataError as error:
            options.warn([f"{preset} is not run: {error}"])
            continue
        if setting.other_data:
            options.warn([f"{preset}: {setting.label}; {missing}"])
        settings.append(setting)
    return settings


def _run_missing(
    settings: list[papers.PaperSetting],
    store: papers.ReproductionStore,
    seeds: int | None,
    worker: str | None,
    jobs: int | None,
) -> bool:
    """Run what is missing; return True if some runs failed."""
    failed = False
    for number, setting in enumerate(settings, 1):
        preset = setting.load()
        pairs = [(name, seed) for name in preset.methods for seed in range(seeds or preset.seeds)]
        comparison = store.add_runs(setting, pairs, worker or "inline")
        missing = sum(not run.complete for _, run in comparison.entries())
        left = f"{missing} runs left" if missing else "complete"
        say(f"{number} of {len(settings)}: {setting.preset}, {setting.label}: {left}", err=True)
        if not missing:
            continue
        try:
            execute_runs(comparison, jobs, worker=worker, resume="the same command")
        except RunError as error:  # continue with the other settings
            options.warn([str(error)])
            failed = True
    return failed


def _import_runs(store: papers.ReproductionStore, folder: Path) -> None:
    """Copy the finished runs below a folder into the store, and report what was copied."""
    report = papers.import_runs(store, folder)
    if store.path.resolve() in (folder.resolve(), *folder.resolve().parents):
        say(f"{folder}: this is the store or a part of it; nothing is copied")
    elif report.is_empty:
        say(f"{folder}: contains no runs")
    else:
        say(f"{folder}: {len(report.copied)} runs copied, {len(report.identical)} already stored with the same digest")
    options.warn(f"{run.setting.preset}, {run.method}, seed {run.seed}: {line}" for run, line in report.different)
    options.warn(report.skipped)


def _print_entries(entries: Iterable[papers.Entry], store: papers.ReproductionStore) -> None:
    """Print a table of published entries, with the stored runs of each."""
    stored: dict[str, list[str]] = {}
    for setting, comparison in store.comparisons().items():
        runs = [run for _, run in comparison.entries()]
        finished = sum(run.complete for run in runs)
        stored.setdefault(setting.preset, []).append(f"{setting.label}: {finished} of {len(runs)} runs")
    rows = []
    for entry in entries:
        runs_text = "; ".join(stored.get(entry.preset or "", [entry.study_page or papers.NOT_RUN]))
        rows.append([entry.preset or "no preset", entry.where, entry.quantity.title, runs_text])
    print_table([["preset", "in the paper", "measured", "in the store"], *rows], left=True)
