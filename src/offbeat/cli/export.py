"""The command `offbeat export`: write the model for use without offbeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat import engine
from offbeat.cli import shared_options as options
from offbeat.cli.terminal import say
from offbeat.core.errors import ConfigError
from offbeat.experiment import run as run_folders

# suffixes of other formats
OTHER_FORMATS = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), "a torch pickle"),
    **dict.fromkeys((".pkl", ".pickle"), "a pickle"),
    **dict.fromkeys((".h5", ".keras"), "a Keras model"),
    ".onnx": "an ONNX graph",
    ".npz": "NumPy arrays",
}


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write [default: RUN.safetensors].")] = None,
) -> None:
    """Write a run's model as a plain state_dict in safetensors; it loads without offbeat.

    Load it with module.load_state_dict(safetensors.torch.load_file(FILE)). For an unfinished run, this is the model of
    the last checkpoint. The file's metadata describes architecture, preprocessing, classes and run:
    safetensors.safe_open(FILE, "pt").metadata().
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    path = out or Path(f"{folder.resolve().name}.safetensors")
    if (other := OTHER_FORMATS.get(path.suffix.lower())) is not None:
        better = path.with_suffix(".safetensors")
        raise ConfigError(f"--out {path}: {path.suffix} means {other}, but this is safetensors: use {better}")
    options.use_data(None, folder)  # the model of an unfinished run is built from its data
    data = run_folders.Run(folder).export_model()
    engine.write_atomically(path, data)
    say(f"{path} ({len(data)} bytes)")
