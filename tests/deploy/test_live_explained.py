"""What `explain` and `which --from` make of a live run, whose sites have names and came by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_serving import experiment_of, serve

from offbeat.core.strategies import FedAsync, FedAvg
from offbeat.deploy import replaying
from offbeat.experiment import explain
from offbeat.experiment.folder import create


def test_a_site_of_a_live_run_is_explained_by_its_name(tmp_path: Path):
    run = create(tmp_path / "run", experiment_of(FedAvg()))
    serve(run, tmp_path)
    told = explain.read(run, "site-1")
    assert told.name(told.life.client) == "site-1"
    assert [job.outcome for job in told.life.jobs if job.ended is not None] == ["arrive"] * 4  # 12 updates of 3 sites
    assert all(job.heard_with == 2 for job in told.life.jobs if job.committed is not None)
    assert sum(explain.shares(told).values()) == pytest.approx(1)
    with pytest.raises(ValueError, match="site-0, site-1, site-2"):
        explain.read(run, "site-7")


def test_what_a_trace_tells_of_sites_that_stayed(tmp_path: Path):
    run = create(tmp_path / "run", experiment_of(FedAsync()))
    serve(run, tmp_path)
    assert replaying.served(run) is not None
    found, end = replaying.sites(run)
    assert len(found) == 3
    assert end > 0
    for site in found:
        assert site.there[-1][1]
        assert site.examples > 0
