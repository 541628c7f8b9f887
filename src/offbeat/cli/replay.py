"""offbeat replay: another strategy over the times that a live run's sites took."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.shared_options import DataRoot, Json, Sets, UntilText, WorkerName, new_folder, use_data


def replay(
    live: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a live run.")],
    changes: Sets = None,
    until: UntilText = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the simulation [default: runs/NAME-N].")] = None,
    worker: WorkerName = None,
    data: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Simulate what another strategy would have done with sites like those of a live run.

    Clients take as long as the sites did, job by job (beyond the record, times of it are drawn again), on data that is
    at hand: the experiment's own, or what --set data=… names.
    """
    from dataclasses import replace

    from offbeat.cli.run import execute
    from offbeat.deploy import replay_scenario
    from offbeat.engine.until import parse_until
    from offbeat.experiment import build
    from offbeat.experiment.run import execution as runs
    from offbeat.experiment.spec import experiment_files
    from offbeat.experiment.spec.config import strategy_name
    from offbeat.workers import registry

    use_data(data, live)
    if worker is not None:
        registry.parse(worker)
    named = any(change.split("=", 1)[0].split(".")[0] == "data" for change in changes or [])
    experiment = experiment_files.changed(replay_scenario.like(runs.Run(live), named), changes or [], {})
    if until is not None:
        experiment = replace(experiment, until=parse_until(until, experiment.until))
    build.setup(experiment)  # what cannot be built is refused before a folder is made
    folder = new_folder(f"{experiment.name}-{strategy_name(experiment)}-replay", out)
    command = shlex.join(["offbeat", *sys.argv[1:]])
    execute(runs.create(folder, experiment, command, worker=worker or "inline"), 30.0, as_json)
