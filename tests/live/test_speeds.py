"""Three sites of different speeds: a simulation of what was recorded commits the same, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation import PATIENCE, consumed_once, rows, updates, within
from replayed_run import replay_and_compare

from offbeat.deploy.child_processes import free_port
from offbeat.deploy.site_data import SiteFile
from offbeat.engine.live.sites import SiteIds

STRATEGIES = ("fedavg", "fedasync", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")
PACES = {"quick": 0.0, "steady": 0.2, "slow": 0.8}  # seconds that a step takes longer
SITE = """
import os, time
import torch

LIVE = "OFFBEAT_TEST_MARK" in os.environ  # not while it is told again
HELD, WHOLE, EVERY = {held}, 60, 2.0  # another example every so many seconds

class Net(torch.nn.Sequential):
    def forward(self, x):
        time.sleep({pace} if LIVE and self.training else 0.0)
        return super().forward(x)

def model():
    torch.manual_seed(0)
    return Net(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

def num_examples():
    return min(WHOLE, HELD + int((time.time() - os.path.getmtime(__file__)) / EVERY)) if LIVE else WHOLE

def load_data():
    x = torch.randn(WHOLE + 20, 4, generator=torch.Generator().manual_seed({seed}))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    count = num_examples()
    return {{"train": (x[20 : 20 + count], y[20 : 20 + count]), "test": (x[:20], y[:20])}}
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sites_of_different_speeds_are_the_simulation_of_what_was_recorded(offbeat, tmp_path, strategy):
    """ASO-Fed's data grows meanwhile, and the machine of one of its sites, which has its memory, loses power."""
    grows = strategy == "aso_fed"
    least = 18 if grows else 12
    files = {name: tmp_path / f"{name}.py" for name in PACES}
    for seed, (name, pace) in enumerate(PACES.items()):
        files[name].write_text(SITE.format(pace=pace, seed=seed, held=20 if grows else 60))
    (tmp_path / "speeds.yaml").write_text(f"strategy: {strategy}\ntraining: {{steps: 3, batch: 8, lr: 0.1}}\n")
    run, where = tmp_path / "run", f"127.0.0.1:{free_port()}"
    serve = ("serve", "speeds.yaml", "--insecure", "--model", "quick.py", "--min-sites", "3", "--out", "run")
    server = offbeat(*serve, "--until", f"{least}updates", "--port", where.rpartition(":")[2])
    assert within(PATIENCE, lambda: "waiting for sites" in server.said), server.said

    def join(name: str):
        return offbeat("join", "--insecure", "--server", where, "--name", name, "--data", f"{name}.py", "--home", name)

    sites = {name: join(name) for name in PACES}
    if grows:
        assert within(PATIENCE, lambda: heard(run, "steady") >= 2), server.said
        sites["steady"].kill()
        sites["steady"].wait()
        assert sites["steady"].leaves_nobody()
        at, sites["steady"] = heard(run, "steady"), join("steady")
    assert server.wait() == 0, server.said
    for site in sites.values():
        assert site.wait() == 0, site.said
    assert updates(run) >= least
    assert consumed_once(run)
    assert rows(run, "SELECT COUNT(DISTINCT client) FROM trace WHERE kind = 'arrive'") == [(3,)]
    replay_and_compare(run, {name: SiteFile(file) for name, file in files.items()}, served=files["quick"])
    if grows:
        assert heard(run, "steady") > at
        assert rows(run, "SELECT COUNT(DISTINCT examples) FROM trace WHERE kind = 'arrive'")[0][0] > 3
    assert all(command.leaves_nobody() for command in (server, *sites.values()))


def heard(run: Path, site: str) -> int:
    """How many updates of that site were accepted."""
    client = SiteIds.load(run / "sites.json").numbers.get(site, -1)
    found = rows(run, f"SELECT COUNT(*) FROM trace WHERE kind = 'arrive' AND client = {client}")
    return int(found[0][0]) if found else 0
