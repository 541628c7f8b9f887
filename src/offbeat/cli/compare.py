"""offbeat compare: several strategies, several seeds, one table."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli import completion
from offbeat.cli.shared_options import (
    ClientMemory,
    DataRoot,
    DryRun,
    Json,
    Reference,
    ScaleText,
    Sets,
    Source,
    Track,
    UntilText,
    WorkerName,
    load,
    new_folder,
    refuse_unread,
    use_data,
    warn,
    where,
)

if TYPE_CHECKING:
    from offbeat.experiment.comparison import Comparison
    from offbeat.experiment.spec.config import Experiment
    from offbeat.presets import Preset

Strategies = Annotated[
    str | None,
    typer.Option(
        metavar="A,B(k=2),C",
        autocompletion=completion.strategies,
        help="Strategies, with settings in brackets where they differ from the preset's or the defaults [default: "
        "the preset's, or the methods of the file].",
    ),
]


def compare(
    source: Source = None,
    scale: ScaleText = None,
    strategies: Strategies = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0 [default: the preset's].")] = None,
    changes: Sets = None,
    until: UntilText = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison [default: runs/NAME-N].")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Finish a comparison that was stopped.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once [default: one a core].")] = None,
    worker: WorkerName = None,
    memory: ClientMemory = None,
    track: Track = None,
    reference: Reference = None,
    data: DataRoot = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run several strategies on the same clients, delays and seeds, and print one table.

    Also writes a figure (PNG) and a self-contained page (HTML) into the folder.
    """
    from offbeat.core.errors import ConfigError
    from offbeat.experiment.comparison import Comparison

    use_data(data)
    refuse_unread(worker, memory, track)
    if (source is None) == (resume is None):
        raise ConfigError("give a preset or an experiment file to compare on, or --resume DIR to finish a comparison")
    if resume is not None:
        if changes or dry_run or any(given is not None for given in (scale, strategies, seeds, until, out)):
            raise ConfigError(
                "--resume finishes a comparison as it is: no --scale, --strategies, --seeds, --set, --until, --out or "
                "--dry-run with it"
            )
        comparison = Comparison(resume)
        use_data(data, resume / comparison.layout()[0]["folder"])
        say_moved(comparison)
    else:
        assert source is not None
        comparison = _create(
            source,
            scale,
            strategies,
            seeds,
            changes,
            until,
            out,
            reference,
            worker or "inline",
            memory,
            dry_run,
            as_json,
        )
    execute(comparison, jobs, as_json, reference, worker, memory if resume is not None else None, track)


def execute(
    comparison: Comparison,
    jobs: int | None,
    as_json: bool,
    reference: str | None = None,
    worker: str | None = None,
    memory: str | None = None,
    track: list[str] | None = None,
) -> None:
    from offbeat.cli.show import print_comparison

    carry_out(comparison, jobs, reference, worker, memory, track)
    print_comparison(comparison, as_json, reference)


def carry_out(
    comparison: Comparison,
    jobs: int | None,
    reference: str | None = None,
    worker: str | None = None,
    memory: str | None = None,
    track: list[str] | None = None,
) -> None:
    """Finish every run of it, and say what is left where that was stopped."""
    from offbeat.cli.progress_bar import runs_progress
    from offbeat.cli.terminal import say
    from offbeat.core.errors import RunError
    from offbeat.experiment import comparison as comparing
    from offbeat.experiment.run.execution import Unfinished
    from offbeat.results.tracking import tracking

    comparison.checked(reference)
    names = [entry["folder"] for entry in comparison.layout()]
    moved = where(comparison.folder / names[0])
    again = shlex.join(["offbeat", comparison.verb, "--resume", str(comparison.folder), *moved])
    several = {entry["folder"]: run for entry, run in comparison.entries()}
    try:
        told = tracking(several, comparison.folder.resolve().name, track or [])
        with runs_progress(names) as watch, told:
            finished = comparing.execute(comparison, jobs, watch, worker, memory)
    except Unfinished as error:
        raise RunError(f"{error}. What is stored is whole; when that is mended: {again}") from None
    except KeyboardInterrupt:
        finished = False
    if not finished:
        say(f"stopped; finish it with: {again}", err=True)
        raise typer.Exit(130)


def _create(
    source: str,
    scale: str | None,
    strategies: str | None,
    seeds: int | None,
    changes: list[str] | None,
    until: str | None,
    out: Path | None,
    reference: str | None,
    worker: str,
    memory: str | None,
    dry_run: bool,
    as_json: bool,
) -> Comparison:
    """A new comparison; with `dry_run` only told."""
    from dataclasses import replace

    from offbeat.cli.terminal import print_experiment
    from offbeat.core.errors import unknown
    from offbeat.experiment import build
    from offbeat.experiment import comparison as comparing
    from offbeat.experiment.spec import setting_warnings

    refuse_per_run(changes or [])
    preset = load(source, changes, until, scale, several=True)
    experiments = chosen(preset, strategies)
    if reference is not None and reference not in experiments:
        raise unknown("strategy of this comparison", reference, experiments)
    numbers = list(range(seeds or preset.seeds))
    if dry_run:
        methods = {name: experiment.strategy for name, experiment in experiments.items()}
        print_experiment(preset.experiment, as_json, methods, numbers)
        raise typer.Exit
    for seed in numbers:
        build.setup(replace(preset.experiment, seed=seed))  # what cannot be built is refused before a folder is made
    made = comparing.create(
        new_folder(f"compare-{preset.experiment.name}", out),
        experiments,
        numbers,
        reference or preset.reference,
        worker,
        memory,
    )
    warn(f"{label}: {line}" for label, experiment in experiments.items() for line in setting_warnings.of(experiment))
    return made


def say_moved(comparison: Comparison) -> None:
    """Each way of being on another machine once, however many runs began there."""
    moves = [run.moved() for name in comparison.strategies() for run in comparison.runs(name)]
    for moved in dict.fromkeys(filter(None, moves)):
        typer.echo(f"{comparison.folder}: of {moves.count(moved)} runs, {moved}", err=True)


def refuse_per_run(changes: list[str]) -> None:
    """What a comparison sets for each of its runs would silently win over these."""
    from offbeat.core.errors import ConfigError
    from offbeat.experiment.spec.experiment_files import split_change

    instead = {
        "strategy": "a comparison has several strategies; choose them with --strategies",
        "seed": "choose how many with --seeds",
    }
    for change in changes:
        setting = split_change(change)[0][0]
        if setting in instead:
            raise ConfigError(f"--set {change}: {instead[setting]}")


def chosen(preset: Preset, strategies: str | None, option: str = "--strategies") -> dict[str, Experiment]:
    """Label -> experiment, of those that are named; else of the preset's or the file's."""
    from offbeat.cli.terminal import say
    from offbeat.core.errors import ConfigError
    from offbeat.experiment import method_labels
    from offbeat.experiment.spec import call_syntax

    if strategies is None:
        return {name: preset.with_strategy(name) for name in preset.compared or preset.methods}
    given = [word for word in call_syntax.split(strategies) if word]
    if not given:
        raise ConfigError(
            f"{option} {strategies!r} names none: write fedavg,fedbuff(k=2); see 'offbeat list strategies'"
        )
    called = method_labels.of(given, preset.methods)
    experiments, lines = method_labels.distinct([(name, preset.with_strategy(word)) for word, name in called])
    for line in lines:
        say(line, err=True)
    return experiments
