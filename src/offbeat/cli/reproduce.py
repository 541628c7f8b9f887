"""offbeat reproduce: a paper's table beside ours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.shared_options import DataRoot, UntilText, WorkerName, refuse_no_end, use_data, warn

if TYPE_CHECKING:
    from offbeat.experiment.comparison import Comparison
    from offbeat.papers.entries import Entry
    from offbeat.papers.run_store import PaperSetting, ReproductionStore
    from offbeat.presets import Scale

MOST_TOLD = 5  # entries


def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER|PAPER/TABLE",
            help="A paper (orthofl, aso_fed, fedpsa, fed_ogd, fedcompass), or the beginning of some of its presets: "
            "fedcompass/table1 [default, with --list: all].",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="quick|paper",
            help="The paper's size, or minutes on two cores: then a choice of the entries is run unless a preset is "
            "named in full or --all is given, and made-up data stands in for what is missing. At the paper's size "
            "only real data does, if some is near to it.",
        ),
    ] = "quick",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0 [default: the preset's].")] = None,
    until: UntilText = None,
    worker: WorkerName = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once [default: one a core].")] = None,
    store: Annotated[Path, typer.Option(metavar="DIR", help="Where runs are kept.")] = Path("runs/reproductions"),
    into: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Take into the store, by copying, the finished runs below DIR: of another machine, day or seed. "
            "Nothing is overwritten. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where pages are written [default: in the store].")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="At the quick scale, every entry: that may take hours.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Run nothing: pages of what the store has.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print the entries and what the store has, and end.")] = False,
    data: DataRoot = None,
) -> None:
    """Run what is missing of a paper's table, and write a page with the paper's numbers beside ours.

    Finished runs are kept in the store and never repeated; a table can be built in pieces.
    """
    from offbeat.cli.terminal import print_table, say
    from offbeat.core.errors import ConfigError
    from offbeat.papers import paper_page
    from offbeat.papers.entries import find_entries, load_papers
    from offbeat.papers.evaluated_entry import MeasuredEntry, evaluate_entries
    from offbeat.papers.page_merge import entry_key
    from offbeat.papers.run_store import ReproductionStore
    from offbeat.workers import registry

    use_data(data)
    size = _scale(scale)
    if worker is not None:
        registry.parse_worker(worker)
    if until is not None:
        refuse_no_end(until)
    _refuse_file("--store", store)
    pages = store if out is None else out
    _refuse_file("--out", pages)
    kept = ReproductionStore(store)
    if what is not None:
        _refuse_other_preset(what)
    if listed:
        names = [what] if what is not None else list(load_papers())
        _list([entry for name in names for entry in find_entries(name)[1]], kept)
        return
    if what is None:
        raise ConfigError(f"give a paper, or one of its tables: {', '.join(load_papers())}, fedcompass/table1")
    paper, entries = find_entries(what)
    for folder in into or []:
        _take(kept, folder)
    failed = False
    if stored:
        if not store.is_dir():
            raise ConfigError(f"there is no store {store}: name it with --store, or leave --stored away")
        _tell_unused(seeds=seeds, until=until, worker=worker, jobs=jobs, all=every or None)
    else:
        failed = _run(_worlds(what, entries, size, until, every), kept, seeds, worker, jobs)
    looked = evaluate_entries(paper.entries, kept)
    warn(f"not shown: {line}" for one in looked for line in one.skipped)
    path, stays = paper_page.write_page(paper, looked, pages)
    if stays:
        wheres = list(dict.fromkeys(where for where, _ in stays))
        which = "; ".join(wheres[:MOST_TOLD]) + ("; …" if len(wheres) > MOST_TOLD else "")
        warn([f"{path} keeps what it shows more of than {store} has: {which}"])
    asked = [
        one
        for one in looked
        if one.entry in entries and isinstance(one, MeasuredEntry) and entry_key(one.entry) not in stays
    ]
    if asked:
        rows = [[one.entry.where, one.entry.quantity.title, one.verdict, one.size] for one in asked]
        print_table([["in the paper", "measured", "verdict", "size"], *rows], left=True)
    say(f"page: {path}")
    if failed:
        raise typer.Exit(1)


def _scale(given: str) -> Scale:
    from typing import cast, get_args

    from offbeat.core.errors import unknown_name
    from offbeat.presets import Scale

    if given not in get_args(Scale):
        raise unknown_name("scale", given, get_args(Scale))
    return cast("Scale", given)


def _refuse_other_preset(name: str) -> None:
    from offbeat import presets
    from offbeat.core.errors import ConfigError

    if name in presets.names() and "/" not in name:
        raise ConfigError(f"{name!r} belongs to no paper: 'offbeat compare {name}' runs it")


def _refuse_file(option: str, path: Path) -> None:
    """Before anything runs: what is computed would have no place."""
    from offbeat.core.errors import ConfigError

    if path.is_symlink() and not path.exists():
        raise ConfigError(f"{option} {path}: it is a link that leads nowhere; name a folder")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{option} {path}: it is a file, not a folder; name a folder")


def _tell_unused(**given: object) -> None:
    unused = [f"--{name}" for name, value in sorted(given.items()) if value is not None]
    if unused:
        warn([f"--stored runs nothing: {' and '.join(unused)} {'have' if len(unused) > 1 else 'has'} no use"])


def _worlds(what: str, entries: Iterable[Entry], scale: Scale, until: str | None, every: bool) -> list[PaperSetting]:
    """Those to run. What cannot be, for want of data, is told."""
    from offbeat.core.errors import DataError
    from offbeat.papers.run_store import choose_setting

    entries = list(entries)
    whole = every or scale != "quick" or any(entry.preset == what for entry in entries)
    some = entries if whole else [entry for entry in entries if entry.in_quick_subset] or entries
    if len(some) < len(entries):
        warn([f"quick: {len(some)} of {len(entries)} entries are run; --all, or a preset's whole name, for others"])
    made = []
    for preset in dict.fromkeys(entry.preset for entry in some if entry.preset is not None):
        try:
            world, lacking = choose_setting(preset, scale, until)
        except DataError as error:
            warn([f"{preset} is not run: {error}"])
            continue
        if world.other_data:
            warn([f"{preset}: {world.label}; {lacking}"])
        made.append(world)
    return made


def _run(
    worlds: list[PaperSetting], store: ReproductionStore, seeds: int | None, worker: str | None, jobs: int | None
) -> bool:
    """Make and finish what is missing; true if some could not be finished."""
    from offbeat.cli.terminal import say
    from offbeat.core.errors import RunError

    failed = False
    for number, world in enumerate(worlds, 1):
        preset = world.load()
        pairs = [(name, seed) for name in preset.methods for seed in range(seeds or preset.seeds)]
        comparison = store.add_runs(world, pairs, worker or "inline")
        missing = sum(not run.complete for _, run in comparison.entries())
        say(f"{number} of {len(worlds)}: {world.preset}, {world.label}: {missing or 'no'} runs to go", err=True)
        if not missing:
            continue
        try:
            _finish(comparison, jobs, worker)
        except RunError as error:  # the others go on
            say(f"warning: {error}", err=True)
            failed = True
    return failed


def _finish(comparison: Comparison, jobs: int | None, worker: str | None) -> None:
    from offbeat.cli.progress_bar import runs_progress
    from offbeat.cli.terminal import say
    from offbeat.experiment import comparison as comparing

    finished = False
    try:
        with runs_progress([entry["folder"] for entry in comparison.layout()]) as watch:
            finished = comparing.execute_comparison(comparison, jobs, watch, worker)
    except KeyboardInterrupt:
        pass
    if not finished:
        say("stopped; the same command goes on", err=True)
        raise typer.Exit(130)


def _take(store: ReproductionStore, folder: Path) -> None:
    from offbeat.cli.terminal import say
    from offbeat.papers.import_runs import import_runs

    taken = import_runs(store, folder)
    home = store.path.resolve()
    if home in (folder.resolve(), *folder.resolve().parents):
        say(f"{folder}: it is the store, or in it; nothing is taken")
    elif taken.is_empty:
        say(f"{folder}: there are no runs below it")
    else:
        say(f"{folder}: {len(taken.copied)} runs taken, {len(taken.identical)} were here already, with the same digest")
    warn(f"{p.setting.preset}, {p.method}, seed {p.seed}: {told}" for p, told in taken.different)
    warn(taken.skipped)


def _list(entries: Iterable[Entry], store: ReproductionStore) -> None:
    from offbeat.cli.terminal import print_table
    from offbeat.papers.evaluated_entry import NOT_RUN

    there = store.comparisons()
    found: dict[str, list[str]] = {}
    for world, comparison in there.items():
        several = comparison.entries()
        done = sum(run.complete for _, run in several)
        found.setdefault(world.preset, []).append(f"{world.label}: {done} of {len(several)} runs")
    rows = [
        [
            e.preset or "no preset",
            e.where,
            e.quantity.title,
            "; ".join(found.get(e.preset or "", [e.study_page or NOT_RUN])),
        ]
        for e in entries
    ]
    print_table([["preset", "in the paper", "measured", "in the store"], *rows], left=True)
