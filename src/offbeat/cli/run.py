"""offbeat run: one experiment, one folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.shared_options import (
    ClientMemory,
    DataRoot,
    DryRun,
    Json,
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
    from offbeat.experiment.run.execution import Run


def run(
    source: Source = None,
    scale: ScaleText = None,
    changes: Sets = None,
    seed: Annotated[int | None, typer.Option(help="Random seed: same seed, same clients, delays and batches.")] = None,
    until: UntilText = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [default: runs/NAME-N].")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with a run that was stopped or killed.")
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(min=0.0, help="Seconds between checkpoints, at least; 0: after every event.")
    ] = 30.0,
    worker: WorkerName = None,
    memory: ClientMemory = None,
    track: Track = None,
    data: DataRoot = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run an experiment in virtual time and store it in a folder.

    A run can be stopped with Ctrl-C, or killed, at any moment: --resume gives the same result as if nothing had
    happened, bit for bit.
    """
    from offbeat.cli.terminal import print_experiment
    from offbeat.core.errors import ConfigError
    from offbeat.experiment import build
    from offbeat.experiment.run import execution as runs
    from offbeat.experiment.spec import setting_warnings
    from offbeat.experiment.spec.config import strategy_name

    use_data(data, resume)
    refuse_unread(worker, memory, track)
    if (source is None) == (resume is None):
        raise ConfigError("give a preset or an experiment file to start a run, or --resume DIR to go on with one")
    if resume is not None:
        if changes or dry_run or any(given is not None for given in (scale, seed, until, out)):
            raise ConfigError(
                "--resume goes on with a run as it is: --scale, --set, --seed, --until, --out and --dry-run belong to "
                "a new one"
            )
        stopped = runs.Run(resume)
        if moved := stopped.moved():
            typer.echo(f"{resume}: {moved}", err=True)
        execute(stopped, checkpoint_every, as_json, worker, memory, track)
        return
    assert source is not None
    experiment = load(
        source, [*(changes or []), *([f"seed={seed}"] if seed is not None else [])], until, scale
    ).experiment
    if dry_run:
        print_experiment(experiment, as_json)
        return
    build.setup(experiment)  # what cannot be built is refused before a folder is made
    folder = new_folder(f"{experiment.name}-{strategy_name(experiment)}", out)
    command = shlex.join(["offbeat", *sys.argv[1:]])
    made = runs.create(folder, experiment, command, worker=worker or "inline", memory=memory)
    warn(setting_warnings.of(experiment))
    execute(made, checkpoint_every, as_json, track=track)


def execute(
    run: Run,
    checkpoint_every: float,
    as_json: bool,
    worker: str | None = None,
    memory: str | None = None,
    track: list[str] | None = None,
) -> None:
    from offbeat.cli.progress_bar import run_progress
    from offbeat.cli.show import print_run
    from offbeat.cli.terminal import say
    from offbeat.core.errors import RunError
    from offbeat.engine import divergence
    from offbeat.engine.process_memory import keep_freed
    from offbeat.engine.virtual.virtual_engine import INTERRUPTED
    from offbeat.experiment.run import execution as runs
    from offbeat.results.tracking import tracking

    again = shlex.join(["offbeat", "run", "--resume", str(run.folder), *where(run.folder)])
    keep_freed()
    try:
        told = tracking({run.folder.resolve().name: run}, None, track or [])
        with run_progress(str(run.experiment().until)) as watch, told:
            outcome = runs.execute(run, watch, checkpoint_every, worker, memory)
    except runs.Unfinished as error:
        raise RunError(f"{error}. What is stored is whole; when that is mended: {again}") from None
    except KeyboardInterrupt:  # before the first event, or a second one: the last checkpoint stands
        say(f"stopped; go on with: {again}", err=True)
        raise typer.Exit(130) from None
    if outcome is not None and outcome.reason == INTERRUPTED:
        say(f"stopped at {outcome.now:.0f} s; go on with: {again}", err=True)
        raise typer.Exit(130)
    if outcome is None:
        say("this run was complete already", err=True)
    ended = print_run(run, as_json).ended
    if divergence.ended(ended):
        raise RunError(f"{ended}. What is stored is whole: the model is the last finite one")
