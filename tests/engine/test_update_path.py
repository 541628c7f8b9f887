"""The files that one update passes through are few, and ARCHITECTURE.md lists exactly these."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import offbeat
from offbeat.core.protocol import Layout, World
from offbeat.core.strategies import FedAsync
from offbeat.core.vector import flatten
from offbeat.engine import Until
from offbeat.engine.virtual import VirtualEngine
from offbeat.engine.virtual.event_heap import Clock
from offbeat.scenario.delays import Uniform
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.training import ClientData, Trainer, Training
from offbeat.workers.inline import Inline

PACKAGE = Path(offbeat.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
MAX_FILES = 18
CLIENTS, EXAMPLES = 10, 20
FIRST, LAST = 15, 35  # arrivals between which files are counted: after the start, before the first check of the model


def small_run() -> VirtualEngine:
    """FedAsync with inline training by autograd, without evaluation, checkpoints, streaming and faults."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(CLIENTS * EXAMPLES, 4, generator=draw), torch.randint(3, (CLIENTS * EXAMPLES,), generator=draw)
    rows = {client: torch.arange(client * EXAMPLES, (client + 1) * EXAMPLES) for client in range(CLIENTS)}
    data, module = ClientData.shared(x, y, rows), nn.Sequential(nn.Linear(4, 3), nn.Softplus())
    world = World(model=flatten(module), layout=Layout.of(module), clients=data.num_examples)
    environment = SimulatedWorld(delays=Uniform(low=10.0, high=100.0), counts=data.num_examples, seed=0)
    worker = Inline(Trainer(module, data, Training(batch=10)))
    return VirtualEngine(FedAsync(), world, environment, worker, until=Until(updates=LAST + 5))


def files_of_an_update() -> list[str]:
    """Return the files of the package whose functions run between two arrivals."""
    engine, files, arrivals = small_run(), set[str](), 0
    pop = Clock.pop.__code__

    def record(frame: FrameType, event: str, argument: object) -> None:
        nonlocal arrivals
        if event == "call":
            arrivals += frame.f_code is pop
            path = Path(frame.f_code.co_filename)
            if FIRST <= arrivals < LAST and path.is_relative_to(PACKAGE):
                files.add(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(record)
    try:
        engine.run()
    finally:
        sys.setprofile(None)
    return sorted(files)


def test_an_update_passes_through_few_files():
    files = files_of_an_update()
    assert 0 < len(files) <= MAX_FILES, files


def test_architecture_lists_the_files_of_an_update():
    section = re.search(r"^#+ The path of an update\n(.*?)(?=^#|\Z)", ARCHITECTURE.read_text(), re.M | re.S)
    assert section is not None, "ARCHITECTURE.md has no section 'The path of an update'"
    block = re.search(r"^```\w*\n(.*?)^```", section[1], re.M | re.S)
    assert block is not None, "the section has no fenced list"
    listed = [line.split()[0] for line in block[1].splitlines() if line.strip()]
    assert sorted(listed) == files_of_an_update()
