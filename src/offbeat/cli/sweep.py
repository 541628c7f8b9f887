"""offbeat sweep: a grid of settings, one table, one picture."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.compare import Strategies, chosen, execute, refuse_per_run, say_moved
from offbeat.cli.shared_options import (
    ClientMemory,
    DataRoot,
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
)

if TYPE_CHECKING:
    from offbeat.experiment.comparison import Comparison
    from offbeat.experiment.parameter_sweep import Sweep


def sweep(
    source: Source = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING=V,V,V",
            help="A setting and its values: strategy.beta=0.2,0.4, partition.alpha=0.1,1. Repeatable: all combinations "
            "are run. A setting of the strategy is varied for those methods that have it.",
        ),
    ] = None,
    scale: ScaleText = None,
    strategies: Strategies = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0 [default: the preset's].")] = None,
    changes: Sets = None,
    until: UntilText = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep [default: runs/sweep-NAME-N].")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Finish a sweep that was stopped.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once [default: one a core].")] = None,
    worker: WorkerName = None,
    memory: ClientMemory = None,
    track: Track = None,
    data: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Run every combination of some settings, and print one table.

    Without --strategies: those of the preset or the file that have a setting which is varied. Also draws how much each
    setting matters (sensitivity.png) into the folder.
    """
    from offbeat.core.errors import ConfigError
    from offbeat.experiment.comparison import Comparison

    use_data(data)
    refuse_unread(worker, memory, track)
    if (source is None) == (resume is None):
        raise ConfigError("give a preset or an experiment file to sweep over, or --resume DIR to finish a sweep")
    if resume is not None:
        if over or changes or any(given is not None for given in (scale, strategies, seeds, until, out)):
            raise ConfigError(
                "--resume finishes a sweep as it is: no --over, --scale, --strategies, --seeds, --set, --until or "
                "--out with it"
            )
        made = Comparison(resume)
        if made.verb != "sweep":
            raise ConfigError(f"{resume} is a comparison: finish it with 'offbeat compare --resume {resume}'")
        use_data(data, resume / made.layout()[0]["folder"])
        say_moved(made)
    else:
        assert source is not None
        if not over:
            raise ConfigError("--over is missing: a sweep is over something, such as --over partition.alpha=0.1,1")
        made = _create(source, scale, strategies, over, seeds, changes, until, out, worker or "inline", memory)
    execute(made, jobs, as_json, None, worker, memory if resume is not None else None, track)


def _create(
    source: str,
    scale: str | None,
    strategies: str | None,
    given: list[str],
    seeds: int | None,
    changes: list[str] | None,
    until: str | None,
    out: Path | None,
    worker: str,
    memory: str | None,
) -> Comparison:
    from offbeat.cli.terminal import say
    from offbeat.experiment import parameter_sweep as sweeps
    from offbeat.experiment.spec import setting_warnings

    refuse_per_run(changes or [])
    over = sweeps.parse(given)
    preset = load(source, changes, until, scale, several=True)
    methods = chosen(preset, strategies)
    if strategies is None:
        methods = sweeps.having(methods, over)
    points = sweeps.points(methods, over)
    numbers = list(range(seeds or preset.seeds))
    sweeps.refuse_impossible(points.values(), numbers)  # before a folder is made
    made = sweeps.create(new_folder(f"sweep-{preset.experiment.name}", out), points, over, numbers, worker, memory)
    for line in sweeps.left_as_they_are(methods, over):
        say(line, err=True)
    warn(f"{point.method}: {line}" for point, experiment in points.items() for line in setting_warnings.of(experiment))
    say(f"{len(points)} combinations, {len(points) * len(numbers)} runs: {made.folder}", err=True)
    return made


def print_sweep(sweep: Sweep, as_json: bool, write: bool = False) -> None:
    """Also of one that is not finished; `write` draws the picture as well."""
    from offbeat.cli.terminal import print_json, print_tables, say
    from offbeat.results import sweep_figure

    results, folder = sweep.results(), sweep.comparison.folder
    if write:
        sweep_figure.save(sweep, results, sweep.figure)
    if as_json:
        print_json(sweep_figure.plain(sweep, results))
        return
    for r in results:
        for line in () if r.row is None else r.row.warnings:
            say(f"warning: {r.point.label}, {line}", err=True)
    print_tables([sweep_figure.table(sweep, results)])
    if sweep.figure.is_file():
        say(f"figure: {sweep.figure}")
    left = sum(r.seeds - r.done for r in results)
    if left:
        total = sum(r.seeds for r in results)
        again = shlex.join(["offbeat", "sweep", "--resume", str(folder)])
        say(f"{left} of {total} runs are not finished: {again}", err=True)


def in_file(sweep: Sweep, as_json: bool) -> str:
    """The same, without a word about the picture."""
    from offbeat.cli.terminal import in_json, in_text
    from offbeat.results import sweep_figure

    results = sweep.results()
    if as_json:
        return in_json(sweep_figure.plain(sweep, results)) + "\n"
    return in_text([sweep_figure.table(sweep, results)])
