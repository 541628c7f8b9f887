"""The command `offbeat compare`: run several strategies with several seeds and print one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from offbeat import experiment as experiments
from offbeat import presets, results
from offbeat.cli import shared_options as options
from offbeat.cli.progress_bar import runs_progress
from offbeat.cli.show import print_comparison
from offbeat.cli.terminal import print_experiment, say
from offbeat.core.errors import ConfigError, RunError, unknown_name
from offbeat.experiment import run as run_folders
from offbeat.experiment import spec


def compare(
    source: options.Source = None,
    scale: options.Scale = None,
    strategies: options.Strategies = None,
    seeds: options.Seeds = None,
    changes: options.Changes = None,
    until: options.Until = None,
    out: options.Out = None,
    resume: options.Resume = None,
    jobs: options.Jobs = None,
    worker: options.Worker = None,
    memory: options.ClientMemory = None,
    track: options.Track = None,
    reference: options.Reference = None,
    data: options.DataFolder = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Run several strategies on the same clients, delays and seeds, and print one table.

    Also write a figure (PNG) and a self-contained page (HTML) into the folder.
    """
    options.use_data(data)
    options.check_execution_options(worker, memory, track)
    new_only = {"scale": scale, "strategies": strategies, "seeds": seeds, "set": changes, "until": until, "out": out}
    options.check_source_or_resume(source, resume, **new_only, dry_run=dry_run)
    if resume is not None:
        comparison = experiments.Comparison(resume)
        prepare_resume(comparison, data)
        execute_runs(comparison, jobs, reference, worker, memory, track)
        print_comparison(comparison, as_json, reference)
        return
    assert source is not None
    check_comparison_changes(changes)
    preset = options.load(source, changes, until, scale, several=True)
    methods = select_methods(preset, strategies)
    if reference is not None and reference not in methods:
        raise unknown_name("strategy of this comparison", reference, methods)
    seed_numbers = list(range(seeds or preset.seeds))
    if dry_run:
        shown = {name: experiment.strategy for name, experiment in methods.items()}
        print_experiment(preset.experiment, as_json, shown, seed_numbers)
        return
    for seed in seed_numbers:
        experiments.setup(replace(preset.experiment, seed=seed))  # reject an invalid one before a folder is made
    folder, default = options.new_folder(f"compare-{preset.experiment.name}", out), reference or preset.reference
    comparison = experiments.create_comparison(folder, methods, seed_numbers, default, worker or "inline", memory)
    options.warn_about_settings(methods)
    execute_runs(comparison, jobs, reference, worker, None, track)
    print_comparison(comparison, as_json, reference)


def execute_runs(
    comparison: experiments.Comparison,
    jobs: int | None,
    reference: str | None = None,
    worker: str | None = None,
    memory: str | None = None,
    track: list[str] | None = None,
    resume: str | None = None,
) -> None:
    """Finish every run of a comparison; explain how to resume if it stops before."""
    comparison.checked(reference)
    runs = {entry["folder"]: run for entry, run in comparison.entries()}
    names = [entry["folder"] for entry in comparison.layout()]
    if resume is None:
        data = options.data_arguments(comparison.folder / names[0])
        resume = options.format_command(comparison.verb, "--resume", comparison.folder, *data)
    try:
        trackers = results.tracking.track_runs(runs, comparison.folder.resolve().name, track or [])
        with runs_progress(names) as watch, trackers:
            finished = experiments.execute_comparison(comparison, jobs, watch, worker, memory)
    except run_folders.Unfinished as error:
        raise RunError(f"{error}. No data was lost. Once fixed, run: {resume}") from None
    except KeyboardInterrupt:
        finished = False
    if not finished:
        say(f"stopped; continue with: {resume}", err=True)
        raise typer.Exit(130)


def prepare_resume(comparison: experiments.Comparison, data: Path | None) -> None:
    """Use the data of the stopped runs, and print each difference to the machine on which they started once."""
    options.use_data(data, comparison.folder / comparison.layout()[0]["folder"])
    differences = [run.machine_difference() for name in comparison.strategies() for run in comparison.runs(name)]
    for difference in dict.fromkeys(filter(None, differences)):
        typer.echo(f"{comparison.folder}: of {differences.count(difference)} runs, {difference}", err=True)


def check_comparison_changes(changes: list[str] | None) -> None:
    """Reject changes of settings that a comparison sets itself for each run."""
    instead = {
        "strategy": "a comparison has several strategies; choose them with --strategies",
        "seed": "choose the number of seeds with --seeds",
    }
    for change in changes or []:
        setting = spec.split_change(change)[0][0]
        if setting in instead:
            raise ConfigError(f"--set {change}: {instead[setting]}")


def select_methods(
    preset: presets.Preset, strategies: str | None, option: str = "--strategies"
) -> dict[str, spec.Experiment]:
    """Map labels to experiments: the named strategies, or by default those of the preset or file."""
    if strategies is None:
        return {name: preset.with_strategy(name) for name in preset.compared or preset.methods}
    words = [word for word in spec.split_calls(strategies) if word]
    if not words:
        raise ConfigError(
            f"{option} {strategies!r} names no strategy: write fedavg,fedbuff(k=2); see 'offbeat list strategies'"
        )
    labelled = spec.label_methods(words, preset.methods)
    methods, lines = spec.distinct_methods([(label, preset.with_strategy(word)) for word, label in labelled])
    for line in lines:
        say(line, err=True)
    return methods
