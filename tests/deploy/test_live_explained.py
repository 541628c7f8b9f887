"""What `explain` and `which --from` make of a live run, whose sites have names and came by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_run_server import experiment_of, serve

from deploy import messages
from offbeat.core.strategies import FedAsync, FedAvg
from offbeat.deploy import replay_scenario
from offbeat.experiment.run.run_folder import create_run
from offbeat.results import explanation


def test_a_site_of_a_live_run_is_explained_by_its_name(tmp_path: Path):
    run = create_run(tmp_path / "run", experiment_of(FedAvg()))
    serve(run, tmp_path)
    told = explanation.read_explained_client(run, "site-1")
    assert told.client_name(told.timeline.client) == "site-1"
    assert [job.outcome for job in told.timeline.jobs if job.ended is not None] == [
        "arrive"
    ] * 4  # 12 updates of 3 sites
    assert all(job.other_count == 2 for job in told.timeline.jobs if job.committed is not None)
    assert sum(told.timeline.time_shares().values()) == pytest.approx(1)
    with pytest.raises(ValueError, match=messages.KNOWN_SITES):
        explanation.read_explained_client(run, "site-7")


def test_what_a_trace_tells_of_sites_that_stayed(tmp_path: Path):
    run = create_run(tmp_path / "run", experiment_of(FedAsync()))
    serve(run, tmp_path)
    assert replay_scenario.served_model(run) is not None
    found, end = replay_scenario.recorded_sites(run)
    assert len(found) == 3
    assert end > 0
    for site in found:
        assert site.reachable[-1][1]
        assert site.examples > 0
