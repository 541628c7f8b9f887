"""The command `offbeat replay`: simulate another strategy with the timing of a live run's sites."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli import shared_options as options
from offbeat.cli.run import execute


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
    from dataclasses import replace

    from offbeat.deploy import simulated_experiment
    from offbeat.engine import parse_until
    from offbeat.experiment import setup
    from offbeat.experiment.run import Run, create_run
    from offbeat.experiment.spec import strategy_name, with_changes

    options.use_data(data, live)
    options.check_execution_options(worker)
    names_data = any(change.split("=", 1)[0].split(".")[0] == "data" for change in changes or [])
    experiment = simulated_experiment(Run(live), names_data)
    experiment = with_changes(experiment, changes or [], {})
    if until is not None:
        experiment = replace(experiment, until=parse_until(until, experiment.until))
    setup(experiment)  # reject an invalid experiment before a folder is made
    folder = options.new_folder(f"{experiment.name}-{strategy_name(experiment)}-replay", out)
    command = shlex.join(["offbeat", *sys.argv[1:]])
    execute(create_run(folder, experiment, command, worker=worker or "inline"), 30.0, as_json)
