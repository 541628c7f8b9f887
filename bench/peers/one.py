"""One framework in its own environment: python bench/peers/one.py NAME WORLD WAY, a row of the table in __main__.py."""

from __future__ import annotations

import importlib
import sys
import tempfile
from contextlib import chdir
from importlib.metadata import version

import torch
from alternate import Given


def main(name: str, world: str, way: str) -> None:
    torch.set_num_threads(1)
    given = Given.of(world, f"{name} {version(name)}, {way}")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # some write files where they run
        importlib.import_module(f"with_{name}").measure(given, way)


if __name__ == "__main__":
    main(*sys.argv[1:])
