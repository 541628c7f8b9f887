"""The one federation of real processes that `make test` has: half a minute."""

from __future__ import annotations

import json

import pytest
from federation import consumed_once
from replayed_run import replay_and_compare

from offbeat.deploy.site_data import PartitionSource


@pytest.mark.slow
def test_a_short_federation_is_the_simulation_of_what_it_recorded(offbeat, tmp_path):
    serve = offbeat("serve", "quickstart", "--local", "1", "--until", "2updates", "--out", "run", "--json")
    assert serve.wait() == 0, serve.said
    found = json.loads(serve.said[serve.said.index("{\n") :])
    assert found["complete"]
    assert [(site["name"], site["updates"]) for site in found["sites"]] == [("site-1", 2)]
    assert serve.leaves_nobody()
    assert consumed_once(tmp_path / "run")
    replay_and_compare(tmp_path / "run", {"site-1": PartitionSource(0)})
