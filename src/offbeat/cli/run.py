"""The command `offbeat run`: run one experiment and store it in a folder."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import typer

from offbeat.cli import shared_options as options
from offbeat.cli.progress_bar import run_progress
from offbeat.cli.show import print_run
from offbeat.cli.terminal import print_experiment, say
from offbeat.core.errors import RunError

if TYPE_CHECKING:
    from offbeat.experiment.run import Run


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
    as_json: options.Json = False,
) -> None:
    """Run an experiment in virtual time and store it in a folder.

    A run may be stopped with Ctrl-C or killed at any moment: --resume gives bit-identical results to an uninterrupted
    run.
    """
    from offbeat.experiment import setup
    from offbeat.experiment.run import Run, create_run
    from offbeat.experiment.spec import setting_warnings, strategy_name

    options.use_data(data, resume)
    options.check_execution_options(worker, memory, track)
    options.check_source_or_resume(
        source, resume, scale=scale, set=changes, seed=seed, until=until, out=out, **{"dry-run": dry_run}
    )
    if resume is not None:
        stopped = Run(resume)
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
    setup(experiment)  # reject an invalid experiment before a folder is made
    folder = options.new_folder(f"{experiment.name}-{strategy_name(experiment)}", out)
    command = shlex.join(["offbeat", *sys.argv[1:]])
    created = create_run(folder, experiment, command, worker=worker or "inline", memory=memory)
    options.warn(setting_warnings(experiment))
    execute(created, checkpoint_every, as_json, track=track)


def execute(
    run: Run,
    checkpoint_every: float,
    as_json: bool,
    worker: str | None = None,
    memory: str | None = None,
    track: list[str] | None = None,
) -> None:
    """Run to the end and print the results; explain how to resume if the run stops before."""
    from offbeat.engine import is_divergence, keep_freed_memory
    from offbeat.engine.virtual import INTERRUPTED
    from offbeat.experiment.run import Unfinished, execute_run
    from offbeat.results.tracking import track_runs

    resume = shlex.join(["offbeat", "run", "--resume", str(run.folder), *options.data_arguments(run.folder)])
    keep_freed_memory()
    try:
        trackers = track_runs({run.folder.resolve().name: run}, None, track or [])
        with run_progress(str(run.experiment().until)) as watch, trackers:
            outcome = execute_run(run, watch, checkpoint_every, worker, memory)
    except Unfinished as error:
        raise RunError(f"{error}. No data was lost. Once fixed, run: {resume}") from None
    except KeyboardInterrupt:  # before the first event, or a second Ctrl-C: the last checkpoint is valid
        say(f"stopped; continue with: {resume}", err=True)
        raise typer.Exit(130) from None
    if outcome is not None and outcome.reason == INTERRUPTED:
        say(f"stopped at {outcome.now:.0f} s; continue with: {resume}", err=True)
        raise typer.Exit(130)
    if outcome is None:
        say("this run is already complete", err=True)
    ended = print_run(run, as_json).ended
    if is_divergence(ended):
        raise RunError(f"{ended}. No data was lost: the stored model is the last finite one")
