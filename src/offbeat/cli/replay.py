"""The command `offbeat replay`: simulate another strategy with the timing of a live run's sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat import deploy
from offbeat import experiment as experiments
from offbeat.cli import shared_options as options
from offbeat.cli.run import execute
from offbeat.experiment import run as run_folders
from offbeat.experiment import spec


def replay(
    live: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a live run.")],
    changes: options.Changes = None,
    until: options.Until = None,
    out: options.Out = None,
    worker: options.Worker = None,
    data: options.DataFolder = None,
    as_json: options.Json = False,
) -> None:
    """Simulate another strategy with clients as slow as the sites of a live run.

    Each job takes as long as the site's job did; jobs beyond the record draw from the recorded times. The simulation
    uses the experiment's data, or the data that --set data=… names.
    """
    options.use_data(data, live)
    options.check_execution_options(worker)
    simulated = deploy.simulated_experiment(run_folders.Run(live), options.names_data(changes))
    experiment = options.with_until(spec.with_changes(simulated, changes or [], {}), until)
    experiments.setup(experiment)  # reject an invalid experiment before a folder is made
    folder = options.new_folder(f"{experiment.name}-{spec.strategy_name(experiment)}-replay", out)
    run = run_folders.create_run(folder, experiment, options.command_line(), worker=worker or "inline")
    execute(run, 30.0, as_json)
