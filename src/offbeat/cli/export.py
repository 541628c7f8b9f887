"""offbeat export: the model, for people who do not have offbeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.options import use_data


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write [default: RUN.safetensors].")] = None,
) -> None:
    """Write a run's model as a plain state_dict in safetensors; it loads without offbeat.

    module.load_state_dict(safetensors.torch.load_file(FILE)). An unfinished run gives the model of its last checkpoint.
    """
    from offbeat.cli.output import say
    from offbeat.core.errors import ConfigError
    from offbeat.engines.checkpoint import write_whole
    from offbeat.experiment.run import Run

    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    use_data(None, folder)  # of an unfinished run the model is built again
    path = out or Path(f"{folder.resolve().name}.safetensors")
    data = Run(folder).export()
    write_whole(path, data)
    say(f"{path} ({len(data)} bytes)")
