"""The command `offbeat sweep`: run a grid of settings and print one table."""

from __future__ import annotations

from typing import Annotated

import typer

from offbeat import experiment as experiments
from offbeat.cli import shared_options as options
from offbeat.cli.compare import check_comparison_changes, execute_runs, prepare_resume, select_methods
from offbeat.cli.show import print_comparison
from offbeat.cli.terminal import say
from offbeat.core.errors import ConfigError
from offbeat.experiment import spec


def sweep(
    source: options.Source = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING=V,V,V",
            help="A setting and its values: strategy.beta=0.2,0.4, partition.alpha=0.1,1. Repeatable: all combinations "
            "are run. A setting of a strategy is varied for the methods that have it.",
        ),
    ] = None,
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
    data: options.DataFolder = None,
    as_json: options.Json = False,
) -> None:
    """Run every combination of some settings, and print one table.

    By default, run the strategies of the preset or file that have a varied setting. Also draw into the folder how much
    each setting matters (sensitivity.png).
    """
    options.use_data(data)
    options.check_execution_options(worker, memory, track)
    new_only = {"scale": scale, "strategies": strategies, "seeds": seeds, "set": changes, "until": until, "out": out}
    options.check_source_or_resume(source, resume, over=over, **new_only)
    if resume is not None:
        comparison = experiments.Comparison(resume)
        if comparison.verb != "sweep":
            raise ConfigError(f"{resume} is a comparison: continue it with 'offbeat compare --resume {resume}'")
        prepare_resume(comparison, data)
        execute_runs(comparison, jobs, None, worker, memory, track)
        print_comparison(comparison, as_json)
        return
    assert source is not None
    if not over:
        raise ConfigError("give at least one --over SETTING=V,V, such as --over partition.alpha=0.1,1")
    check_comparison_changes(changes)
    parameter_sweep = experiments.parameter_sweep
    settings = parameter_sweep.parse_swept_settings(over)
    preset = options.load(source, changes, until, scale, several=True)
    methods = select_methods(preset, strategies)
    if strategies is None:
        methods = parameter_sweep.methods_with_setting(methods, settings)
    combinations = parameter_sweep.combinations(methods, settings)
    seed_numbers = list(range(seeds or preset.seeds))
    parameter_sweep.refuse_impossible(combinations.values(), seed_numbers)  # before a folder is made
    folder = options.new_folder(f"sweep-{preset.experiment.name}", out)
    comparison = parameter_sweep.create_sweep(folder, combinations, settings, seed_numbers, worker or "inline", memory)
    for line in parameter_sweep.unchanged_methods(methods, settings):
        say(line, err=True)
    options.warn(
        f"{each.method}: {line}"
        for each, experiment in combinations.items()
        for line in spec.setting_warnings(experiment)
    )
    say(f"{len(combinations)} combinations, {len(combinations) * len(seed_numbers)} runs: {folder}", err=True)
    execute_runs(comparison, jobs, None, worker, None, track)
    print_comparison(comparison, as_json)
