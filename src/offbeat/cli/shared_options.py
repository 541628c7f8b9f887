"""Options that several commands share, and what they do: load an experiment, find data, make a folder for results."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated, cast

import typer

from offbeat import engine, presets, results, workers
from offbeat.cli.completion import complete_source, complete_strategies
from offbeat.cli.terminal import say
from offbeat.core.errors import ConfigError, RunError, unknown_name
from offbeat.experiment import run as run_folders
from offbeat.experiment import spec

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="PRESET|FILE",
        help="A preset (see 'offbeat list presets') or an experiment file.",
        autocompletion=complete_source,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SETTING=VALUE",
        help="Change a setting: strategy=fedbuff, strategy.k=5, training.lr=0.1. Repeatable.",
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        "--scale", metavar="paper|quick", help="Preset size: paper (default) or quick (minutes on two cores)."
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Random seed: the same seed gives the same model, clients, delays and batches."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Number of seeds, starting at 0 [default: the preset's].")
]
Until = Annotated[
    str | None,
    typer.Option("--until", help="End of a run: 3600s, 2h, 500updates, acc=0.9, or several separated by commas."),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results [default: runs/NAME-N, a new folder].")]
Resume = Annotated[
    Path | None, typer.Option("--resume", metavar="DIR", help="Continue what was stopped or killed in this folder.")
]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Number of parallel runs [default: one per core].")]
CheckpointEvery = Annotated[
    float,
    typer.Option("--checkpoint-every", min=0.0, help="Minimum seconds between checkpoints; 0: after every event."),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Folder with data sets [default: OFFBEAT_DATA, else the cache of the user]."
    ),
]
Strategies = Annotated[
    str | None,
    typer.Option(
        "--strategies",
        metavar="A,B(k=2),C",
        autocompletion=complete_strategies,
        help="Strategies, with changed settings in brackets [default: those of the preset or of the file].",
    ),
]
Reference = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar="STRATEGY",
        autocompletion=complete_strategies,
        help="Strategy that speed-ups and differences refer to [default: the preset's, else the first].",
    ),
]
Worker = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="NAME[:N|ADDRESS]",
        help="inline (default), processes[:N], batched[:N], cuda, ray[:HOST:PORT] or auto. inline, processes and ray "
        "give identical bits; batched and cuda agree within rounding. N: number of processes or cores [default: all]. "
        "auto measures which is fastest. A resumed run keeps its worker by default.",
    ),
]
ClientMemory = Annotated[
    str | None,
    typer.Option(
        "--client-memory",
        metavar="SIZE[:half]",
        help="RAM limit for per-client server state: 8GB, 500MB [default: no limit]. The rest is stored in a file of "
        "the run, with bit-identical results. ':half' stores it in 16 bits, which changes the results.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME[:WHERE]",
        help="Log to an experiment tracker: tensorboard[:FOLDER] [default: in the run folder], mlflow[:URI or FOLDER] "
        "or wandb[:PROJECT]. Repeatable; needs 'pip install offbeat[track]'.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Use neither TLS nor keys; for trying it out, on loopback only.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved config (a valid experiment file) and exit.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_source_or_resume(source: str | None, resume: Path | None, **new_only: object) -> None:
    """Check that either a source or --resume is given, and --resume without options that only a new run takes."""
    if (source is None) == (resume is None):
        raise ConfigError("give a preset or an experiment file, or --resume DIR to continue what was stopped")
    set_values = {name: value for name, value in new_only.items() if value is not None and value is not False}
    unused = [f"--{name.replace('_', '-')}" for name, value in set_values.items() if value != []]
    if resume is not None and unused:
        raise ConfigError(f"--resume continues with the stored settings: omit {', '.join(unused)}")


def check_until(until: str | None) -> None:
    """Reject an empty --until."""
    if until is not None and not until.strip(" ,"):
        raise ConfigError("--until is empty: write 3600s, 2h, 500updates, acc=0.9, or several separated by commas")


def check_execution_options(worker: str | None, memory: str | None = None, track: list[str] | None = None) -> None:
    """Check --worker, --client-memory and --track before a folder is made."""
    if worker is not None:
        workers.parse_worker(worker)
    if memory is not None:
        run_folders.parse_memory_limit(memory)
    results.tracking.parse_trackers(track or [])


def load(
    source: str, changes: list[str] | None, until: str | None, scale: str | None = None, several: bool = False
) -> presets.Preset:
    """Load a preset or an experiment file and apply the changes; `several`: the command can run several methods."""
    path, all_owners, changes = Path(source), False, changes or []
    if source in presets.names():
        preset = presets.load(source, cast("presets.Scale | None", scale))  # rejects an unknown scale
    elif path.suffix in (".yaml", ".yml") or path.exists():
        if scale is not None:
            raise ConfigError(f"--scale {scale}: {source} is a file; only presets of papers have scales")
        file = path / "experiment.yaml" if path.is_dir() else path
        read = spec.read_experiment_with_methods(file)
        if not several and read.needs_method_choice(changes):
            raise ConfigError(
                f"{file} has several methods: {', '.join(read.methods)}; choose one with --set 'strategy="
                f"{next(iter(read.methods))}', or run all with 'offbeat compare {file}'"
            )
        all_owners, experiment = read.all_owners, read.experiment
        named = read.names_strategy or not read.methods
        default = {spec.strategy_name(experiment): experiment.strategy} if named else {}
        preset = presets.Preset(f"from {file}", experiment, {**default, **read.methods}, tuple(read.methods))
    else:
        raise unknown_name("preset or file", source, presets.names())
    experiment = spec.with_changes(preset.experiment, changes, preset.methods)
    # paths in changes are relative to the current folder
    experiment = spec.resolve_paths(experiment, Path.cwd(), but=spec.paths_in(preset.experiment))
    if all_owners and not any(spec.split_change(change)[0] == ["clients"] for change in changes):
        experiment = spec.with_all_owners(experiment)
    return replace(preset, experiment=with_until(experiment, until))


def with_until(experiment: spec.Experiment, until: str | None) -> spec.Experiment:
    """Return the experiment with the end that --until gives; what it does not name stays."""
    check_until(until)
    return experiment if until is None else replace(experiment, until=engine.parse_until(until, experiment.until))


def names_data(changes: list[str] | None) -> bool:
    """Return True if --set changes the data set or one of its settings."""
    return any(change.split("=", 1)[0].split(".")[0] == "data" for change in changes or [])


def use_data(folder: Path | None, run: Path | None = None) -> None:
    """Set the data folder for this process and its children: `folder`, else the one that was used for `run`."""
    if folder is not None:
        if not folder.is_dir():
            raise ConfigError(f"--data {folder}: the folder does not exist")
        os.environ["OFFBEAT_DATA"] = str(folder.resolve())
    elif run is not None:
        recorded = run_folders.Run(run).data_root()
        if recorded is not None and recorded.is_dir():
            os.environ["OFFBEAT_DATA"] = str(recorded)


def data_arguments(run: Path) -> list[str]:
    """Return the --data option that a resumed run needs, which is none unless the data has moved."""
    from offbeat.scenario.data import named_root  # imports torch

    root = named_root()
    return [] if root is None or root == run_folders.Run(run).data_root() else ["--data", str(root)]


def new_folder(name: str, out: Path | None) -> Path:
    """Return `out`, or make the first free of runs/NAME-1, runs/NAME-2, …, so that parallel commands do not collide."""
    if out is not None:
        return out
    base = re.sub(r"[^\w.-]+", "-", name).strip("-.")  # a name is free text
    for number in count(1):
        folder = Path("runs") / f"{base}-{number}"
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            reason = error.strerror or error
            raise RunError(f"cannot make {folder}: {reason}; choose another folder with --out") from None
    return folder


def warn(lines: Iterable[str]) -> None:
    """Print each warning once."""
    for line in dict.fromkeys(lines):
        say(f"warning: {line}", err=True)


def warn_about_settings(experiments: Mapping[str, spec.Experiment]) -> None:
    """Print the warnings about unsuitable settings of each method."""
    warn(f"{label}: {line}" for label, each in experiments.items() for line in spec.setting_warnings(each))


def command_line() -> str:
    """Return the command of this process, quoted for a shell."""
    return shlex.join(["offbeat", *sys.argv[1:]])


def format_command(*words: object) -> str:
    """Return an offbeat command, quoted for a shell."""
    return shlex.join(["offbeat", *map(str, words)])
