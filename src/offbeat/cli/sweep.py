"""The command `offbeat sweep`: run a grid of settings and print one table."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli import shared_options as options
from offbeat.cli.compare import check_comparison_changes, execute_runs, prepare_resume, select_methods
from offbeat.cli.show import print_comparison
from offbeat.cli.terminal import format_json, format_tables, print_json, print_tables, say
from offbeat.core.errors import ConfigError

if TYPE_CHECKING:
    from offbeat.experiment import Sweep


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
    from offbeat.experiment import Comparison, parameter_sweep
    from offbeat.experiment.spec import setting_warnings

    options.use_data(data)
    options.check_execution_options(worker, memory, track)
    options.check_source_or_resume(
        source, resume, over=over, scale=scale, strategies=strategies, seeds=seeds, set=changes, until=until, out=out
    )
    if resume is not None:
        comparison = Comparison(resume)
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
    settings = parameter_sweep.parse_swept_settings(over)
    preset = options.load(source, changes, until, scale, several=True)
    methods = select_methods(preset, strategies)
    if strategies is None:
        methods = parameter_sweep.methods_with_setting(methods, settings)
    combinations = parameter_sweep.combinations(methods, settings)
    numbers = list(range(seeds or preset.seeds))
    parameter_sweep.refuse_impossible(combinations.values(), numbers)  # before a folder is made
    folder = options.new_folder(f"sweep-{preset.experiment.name}", out)
    comparison = parameter_sweep.create_sweep(folder, combinations, settings, numbers, worker or "inline", memory)
    for line in parameter_sweep.unchanged_methods(methods, settings):
        say(line, err=True)
    options.warn(
        f"{each.method}: {line}" for each, experiment in combinations.items() for line in setting_warnings(experiment)
    )
    say(f"{len(combinations)} combinations, {len(combinations) * len(numbers)} runs: {folder}", err=True)
    execute_runs(comparison, jobs, None, worker, None, track)
    print_comparison(comparison, as_json)


def print_sweep(sweep: Sweep, as_json: bool, write: bool = False) -> None:
    """Print the table of a sweep, finished or not; `write` also draws the figure."""
    from offbeat.results import save_sweep_figure, sweep_json, sweep_table

    results, folder = sweep.results(), sweep.comparison.folder
    if write:
        save_sweep_figure(sweep, results, sweep.figure)
    if as_json:
        print_json(sweep_json(sweep, results))
        return
    for result in results:
        for line in () if result.row is None else result.row.warnings:
            say(f"warning: {result.point.label}, {line}", err=True)
    print_tables([sweep_table(sweep, results)])
    if sweep.figure.is_file():
        say(f"figure: {sweep.figure}")
    unfinished = sum(result.seeds - result.finished for result in results)
    if unfinished:
        total = sum(result.seeds for result in results)
        resume = shlex.join(["offbeat", "sweep", "--resume", str(folder)])
        say(f"{unfinished} of {total} runs are not finished; continue with: {resume}", err=True)


def format_sweep(sweep: Sweep, as_json: bool) -> str:
    """Return the table of a sweep as text or JSON for a file."""
    from offbeat.results import sweep_json, sweep_table

    results = sweep.results()
    if as_json:
        return format_json(sweep_json(sweep, results)) + "\n"
    return format_tables([sweep_table(sweep, results)])
