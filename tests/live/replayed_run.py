"""A live run simulated once more from what it recorded: the same order, the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from offbeat.deploy.run_server import load_model
from offbeat.deploy.site_data import SiteSource
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.live.sites import SiteIds
from offbeat.engine.live.trace_replay import replay_trace
from offbeat.experiment.run.run_folder import Run
from offbeat.metrics import trace_summary
from offbeat.training.trainer import Trainer

# what was committed, and what it was based on
ORDER = (
    "SELECT kind, client, ticket, version, base_version FROM trace WHERE kind IN ('dispatch', 'arrive') ORDER BY seq"
)
VERSIONS = "SELECT version FROM commits ORDER BY seq"


def replay_and_compare(folder: Path, sources: Mapping[str, SiteSource], served: Path | None = None) -> Coordinator:
    """`sources` are what each site had, by its name; `served` is the file whose model the server had."""
    run = Run(folder)
    experiment = run.experiment()
    ground = load_model(experiment, served)
    trainers: dict[int, Trainer] = {}
    for name, client in SiteIds.load(folder / "sites.json").numbers.items():
        trainers[client] = sources[name].load(experiment).trainer(client)
    with trace_summary.open_trace(run.trace_file) as db:
        again = replay_trace(
            db, experiment.strategy, ground.world, lambda job: trainers[job.client](job), experiment.until
        )
        again.trace.flush()
        for query in (ORDER, VERSIONS):
            told, lived = again.trace.db.execute(query).fetchall(), db.execute(query).fetchall()
            assert told == lived, f"{told}\n{lived}"
    weights, stored = ground.state_dict(again.model), load_file(run.folder / "model.safetensors")
    assert weights.keys() == stored.keys()
    for name, value in weights.items():
        assert torch.equal(value, stored[name]), name
    return again
