"""offbeat export: the model, for people who do not have offbeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.shared_options import use_data

# endings that promise something else than what is written
LIES = {
    ".pt": "a pickle of torch",
    ".pth": "a pickle of torch",
    ".bin": "a pickle of torch",
    ".ckpt": "a pickle of torch",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
    ".onnx": "a graph in ONNX",
    ".h5": "a model of Keras",
    ".keras": "a model of Keras",
    ".npz": "arrays of numpy",
}


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write [default: RUN.safetensors].")] = None,
) -> None:
    """Write a run's model as a plain state_dict in safetensors; it loads without offbeat.

    module.load_state_dict(safetensors.torch.load_file(FILE)). An unfinished run gives the model of its last checkpoint.
    The file's header says what it is: architecture, preprocessing, classes, run
    (safetensors.safe_open(FILE, "pt").metadata()).
    """
    from offbeat.cli.terminal import say
    from offbeat.core.errors import ConfigError
    from offbeat.engine.checkpoint import write_whole
    from offbeat.experiment.run.execution import Run

    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    path = out or Path(f"{folder.resolve().name}.safetensors")
    if (promised := LIES.get(path.suffix.lower())) is not None:
        better = path.with_suffix(".safetensors")
        raise ConfigError(f"--out {path}: {path.suffix} is {promised}, and this is safetensors: call it {better}")
    use_data(None, folder)  # of an unfinished run the model is built again
    data = Run(folder).export()
    write_whole(path, data)
    say(f"{path} ({len(data)} bytes)")
