"""Measure one framework in its own environment: python bench/peers/run_peer.py FRAMEWORK WORKLOAD METHOD."""

from __future__ import annotations

import importlib
import sys
import tempfile
from contextlib import chdir
from importlib.metadata import version

import torch
from comparison import Comparison


def main(framework: str, workload: str, method: str) -> None:
    torch.set_num_threads(1)
    comparison = Comparison.on_workload(workload, f"{framework} {version(framework)}, {method}")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # some frameworks write into the working directory
        importlib.import_module(f"with_{framework}").measure(comparison, method)


if __name__ == "__main__":
    main(*sys.argv[1:])
