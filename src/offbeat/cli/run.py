"""The command `offbeat run`: run one experiment and store it in a folder."""

from __future__ import annotations

from typing import Annotated

import typer

from offbeat import engine, results, training, workers
from offbeat import experiment as experiments
from offbeat.cli import shared_options as options
from offbeat.cli.progress_bar import run_progress
from offbeat.cli.show import print_run
from offbeat.cli.terminal import print_experiment, print_table, say
from offbeat.core.errors import RunError
from offbeat.engine import virtual
from offbeat.experiment import run as run_folders
from offbeat.experiment import spec


def run(
    source: options.Source = None,
    scale: options.Scale = None,
    changes: options.Changes = None,
    seed: options.Seed = None,
    until: options.Until = None,
    out: options.Out = None,
    resume: options.Resume = None,
    checkpoint_every: options.CheckpointEvery = 30.0,
    worker: options.Worker = None,
    memory: options.ClientMemory = None,
    track: options.Track = None,
    data: options.DataFolder = None,
    dry_run: options.DryRun = False,
    explain_training: Annotated[
        bool,
        typer.Option(
            "--explain-training",
            help="Print how --worker batched, cuda or auto would train this model, and why not otherwise, and exit.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Run an experiment in virtual time and store it in a folder.

    A run may be stopped with Ctrl-C or killed at any moment: --resume gives bit-identical results to an uninterrupted
    run.
    """
    options.use_data(data, resume)
    options.check_execution_options(worker, memory, track)
    options.check_source_or_resume(
        source,
        resume,
        scale=scale,
        set=changes,
        seed=seed,
        until=until,
        out=out,
        dry_run=dry_run,
        explain_training=explain_training,
    )
    if resume is not None:
        stopped = run_folders.Run(resume)
        if difference := stopped.machine_difference():
            typer.echo(f"{resume}: {difference}", err=True)
        execute(stopped, checkpoint_every, as_json, worker, memory, track)
        return
    assert source is not None
    if seed is not None:
        changes = [*(changes or []), f"seed={seed}"]
    experiment = options.load(source, changes, until, scale).experiment
    if dry_run:
        print_experiment(experiment, as_json)
        return
    if explain_training:
        print_kernels(experiment, worker)
        return
    experiments.setup(experiment)  # reject an invalid experiment before a folder is made
    folder = options.new_folder(f"{experiment.name}-{spec.strategy_name(experiment)}", out)
    created = run_folders.create_run(
        folder, experiment, options.command_line(), worker=worker or "inline", memory=memory
    )
    options.warn(spec.setting_warnings(experiment))
    execute(created, checkpoint_every, as_json, track=track)


def print_kernels(experiment: spec.Experiment, worker: str | None) -> None:
    """Print the kernels for the jobs of an experiment, and why each of them is used or not."""
    device = workers.device_of(workers.usable(workers.parse_worker(worker or "batched")))
    prepared = experiments.setup(experiment, device)
    rule = experiments.first_rule(experiment.strategy, prepared.world)
    rows = [["kernel", "used", "reason"]]
    for kernel, reason in training.Dispatcher(prepared.trainer).explain(rule):
        rows.append([kernel, "no" if reason else "yes", reason or ""])
    print_table(rows, left=True)


def execute(
    run: run_folders.Run,
    checkpoint_every: float,
    as_json: bool,
    worker: str | None = None,
    memory: str | None = None,
    track: list[str] | None = None,
) -> None:
    """Run to the end and print the results; explain how to resume if the run stops before."""
    resume = options.format_command("run", "--resume", run.folder, *options.data_arguments(run.folder))
    engine.keep_freed_memory()
    try:
        trackers = results.tracking.track_runs({run.folder.resolve().name: run}, None, track or [])
        with run_progress(str(run.experiment().until)) as watch, trackers:
            outcome = run_folders.execute_run(run, watch, checkpoint_every, worker, memory)
    except run_folders.Unfinished as error:
        raise RunError(f"{error}. No data was lost. Once fixed, run: {resume}") from None
    except KeyboardInterrupt:  # before the first event, or a second Ctrl-C: the last checkpoint is valid
        say(f"stopped; continue with: {resume}", err=True)
        raise typer.Exit(130) from None
    if outcome is not None and outcome.reason == virtual.INTERRUPTED:
        say(f"stopped at {outcome.now:.0f} s; continue with: {resume}", err=True)
        raise typer.Exit(130)
    if outcome is None:
        say("this run is already complete", err=True)
    ended = print_run(run, as_json).ended
    if engine.is_divergence(ended):
        raise RunError(f"{ended}. No data was lost: the stored model is the last finite one")
