"""offbeat run: run one experiment and store it in a folder."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import typer

from offbeat.cli.shared_options import (
    CheckpointOption,
    ClientMemoryOption,
    DataOption,
    DryRunOption,
    JsonOption,
    OutOption,
    ResumeOption,
    ScaleOption,
    SeedOption,
    SetOption,
    SourceArgument,
    TrackOption,
    UntilOption,
    WorkerOption,
    check_execution_options,
    check_source_or_resume,
    data_arguments,
    load,
    new_folder,
    use_data,
    warn,
)

if TYPE_CHECKING:
    from offbeat.experiment.run.run_folder import Run


def run(
    source: SourceArgument = None,
    scale: ScaleOption = None,
    changes: SetOption = None,
    seed: SeedOption = None,
    until: UntilOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    checkpoint_every: CheckpointOption = 30.0,
    worker: WorkerOption = None,
    memory: ClientMemoryOption = None,
    track: TrackOption = None,
    data: DataOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment in virtual time and store it in a folder.

    A run may be stopped with Ctrl-C or killed at any moment: --resume gives bit-identical results to an uninterrupted
    run.
    """
    from offbeat.cli.terminal import print_experiment
    from offbeat.experiment import build
    from offbeat.experiment.run.run_folder import Run, create_run
    from offbeat.experiment.spec.config import setting_warnings, strategy_name

    use_data(data, resume)
    check_execution_options(worker, memory, track)
    check_source_or_resume(
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
    experiment = load(source, changes, until, scale).experiment
    if dry_run:
        print_experiment(experiment, as_json)
        return
    build.setup(experiment)  # reject an invalid experiment before a folder is made
    folder = new_folder(f"{experiment.name}-{strategy_name(experiment)}", out)
    command = shlex.join(["offbeat", *sys.argv[1:]])
    created = create_run(folder, experiment, command, worker=worker or "inline", memory=memory)
    warn(setting_warnings(experiment))
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
    from offbeat.cli.progress_bar import run_progress
    from offbeat.cli.show import print_run
    from offbeat.cli.terminal import say
    from offbeat.core.errors import RunError
    from offbeat.engine.process_memory import keep_freed_memory
    from offbeat.engine.progress import is_divergence
    from offbeat.engine.virtual.virtual_engine import INTERRUPTED
    from offbeat.experiment.run import execution
    from offbeat.results.tracking import tracking

    resume = shlex.join(["offbeat", "run", "--resume", str(run.folder), *data_arguments(run.folder)])
    keep_freed_memory()
    try:
        trackers = tracking({run.folder.resolve().name: run}, None, track or [])
        with run_progress(str(run.experiment().until)) as watch, trackers:
            outcome = execution.execute_run(run, watch, checkpoint_every, worker, memory)
    except execution.Unfinished as error:
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
