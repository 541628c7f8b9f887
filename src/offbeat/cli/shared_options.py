"""What several verbs understand: an experiment by preset name or file, changes to it, a folder for a new run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from offbeat.cli.completion import sources, strategies

if TYPE_CHECKING:
    from offbeat.presets import Preset

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="PRESET|FILE",
        help="A preset (see 'offbeat list presets') or an experiment file.",
        autocompletion=sources,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SETTING=VALUE",
        help="Change a setting: strategy=fedbuff, strategy.k=5, training.lr=0.1. Repeatable.",
    ),
]
ScaleText = Annotated[
    str | None,
    typer.Option(
        "--scale",
        metavar="paper|quick",
        help="Of a paper's preset: its own size [default], or minutes on two cores (quick).",
    ),
]
UntilText = Annotated[
    str | None, typer.Option("--until", help="3600s, 2h, 500updates, acc=0.9 or several with commas.")
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Folder with the data sets [default: OFFBEAT_DATA, else the user's cache]."
    ),
]
Reference = Annotated[
    str | None,
    typer.Option(
        metavar="STRATEGY",
        autocompletion=strategies,
        help="Speed-ups and differences are against this one [default: the comparison's own: the preset's, else the "
        "first].",
    ),
]
WorkerName = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="NAME[:N|ADDRESS]",
        help="Who trains: inline, this process [default; when resumed: as it was begun]; processes[:N], N of them, "
        "else one a core: the same, bit for bit; batched[:N], many clients in one tensor program on N cores, or cuda, "
        "on the GPU: the same within rounding; auto tries which is the quickest; ray[:HOST:PORT], the "
        "processes of a Ray cluster: bit for bit on machines alike.",
    ),
]
ClientMemory = Annotated[
    str | None,
    typer.Option(
        "--client-memory",
        metavar="SIZE[:half]",
        help="Memory of a run for what its method keeps of each client: 8GB, 500MB [default: no limit]. The rest lies "
        "in a file of the run; same result, bit for bit. With :half it is kept in 16 bits, and the result is another.",
    ),
]
FigureFile = Annotated[
    Path | None,
    typer.Option(
        "--figure", metavar="FILE", help="Draw instead of printing: FILE.pdf, .svg or .png, or FILE.html, a page."
    ),
]
FigureKind = Annotated[
    str, typer.Option("--kind", metavar="all|curves|staleness|timeline", help="What the figure shows.")
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME[:WHERE]",
        help="Tell a tracker as it goes on: tensorboard[:FOLDER] [default: in the run folder], mlflow[:URI or FOLDER] "
        "or wandb[:PROJECT]. Repeatable; needs 'pip install offbeat[track]'.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved experiment, which can be run as a file, and end there.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load(
    source: str, changes: list[str] | None, until: str | None, scale: str | None = None, several: bool = False
) -> Preset:
    """A preset, or a file as one whose methods are its own, with the changes made. `several`: it is for a verb that
    runs more than one method.
    """
    from dataclasses import replace

    from offbeat import presets
    from offbeat.core.errors import ConfigError, unknown
    from offbeat.engine.until import parse_until
    from offbeat.experiment.spec import experiment_files, experiment_paths, methods_section
    from offbeat.experiment.spec.config import strategy_name

    path, left_open = Path(source), False
    if source in presets.names():
        preset = presets.load(source, cast("presets.Scale | None", scale))  # which says what it does not know
    elif path.suffix in (".yaml", ".yml") or path.exists():
        if scale is not None:
            raise ConfigError(f"--scale {scale}: {source} is a file; only the presets of papers have scales")
        file = path / "experiment.yaml" if path.is_dir() else path
        read = methods_section.read(file)
        if not several and read.wants_one(changes or []):
            raise ConfigError(
                f"{file} has several methods: {', '.join(read.methods)}; one is wanted, --set 'strategy="
                f"{next(iter(read.methods))}', or all of them with 'offbeat compare {file}'"
            )
        left_open = read.left_open
        own = {strategy_name(read.experiment): read.experiment.strategy} if read.chosen or not read.methods else {}
        preset = presets.Preset(f"from {file}", read.experiment, {**own, **read.methods}, tuple(read.methods))
    else:
        raise unknown("preset or file", source, presets.names())
    experiment = experiment_files.changed(preset.experiment, changes or [], preset.methods)
    # what is typed is meant from where it is typed
    experiment = experiment_paths.beside(experiment, Path.cwd(), but=experiment_paths.paths(preset.experiment))
    if left_open and not any(experiment_files.split_change(change)[0] == ["clients"] for change in changes or []):
        experiment = experiment_paths.everyone(experiment)
    if until is not None:
        refuse_no_end(until)
        experiment = replace(experiment, until=parse_until(until, experiment.until))
    return replace(preset, experiment=experiment)


def refuse_no_end(until: str) -> None:
    from offbeat.core.errors import ConfigError

    if not until.strip(" ,"):
        raise ConfigError("--until says nothing: write 3600s, 2h, 500updates, acc=0.9 or several with commas")


def warn(lines: Iterable[str]) -> None:
    """Each once, before anything runs."""
    from offbeat.cli.terminal import say

    for line in dict.fromkeys(lines):
        say(f"warning: {line}", err=True)


def refuse_unread(worker: str | None, memory: str | None, track: list[str] | None) -> None:
    """What cannot be understood of how it is to be computed, before anything is made."""
    from offbeat.experiment.run import client_memory
    from offbeat.results import tracking as tracks
    from offbeat.workers import registry

    if worker is not None:
        registry.parse(worker)
    if memory is not None:
        client_memory.parse(memory)
    tracks.parse(track or [])


def use_data(folder: Path | None, run: Path | None = None) -> None:
    """Data sets are looked for here, also by the processes that are started from this one; else where they lay when
    `run` was made.
    """
    import os

    from offbeat.core.errors import ConfigError

    if folder is not None:
        if not folder.is_dir():
            raise ConfigError(f"--data {folder}: there is no such folder")
        os.environ["OFFBEAT_DATA"] = str(folder.resolve())
    elif run is not None:
        from offbeat.experiment.run.run_folder import Run

        kept = Run(run).data_root()
        if kept is not None and kept.is_dir():
            os.environ["OFFBEAT_DATA"] = str(kept)


def where(run: Path) -> list[str]:
    """What a command that goes on with this run has to say of its data: nothing, unless it was moved meanwhile."""
    from offbeat.experiment.run.run_folder import Run
    from offbeat.scenario.data.data_root import given_root

    root = given_root()
    return [] if root is None or root == Run(run).data_root() else ["--data", str(root)]


def new_folder(name: str, out: Path | None) -> Path:
    """`out`, or the first free runs/NAME-1, runs/NAME-2, …, made at once: commands started together get one each."""
    import re

    from offbeat.core.errors import RunError

    if out is not None:
        return out
    base = re.sub(r"[^\w.-]+", "-", name).strip("-.")  # a name is free text
    number = 1
    while True:
        folder = Path("runs") / f"{base}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise RunError(
                f"cannot make the folder {folder}: {error.strerror or error}; choose another with --out"
            ) from None
