"""A site computes what an inline trainer does, to the last bit, whatever the strategy; and answers each ticket once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import site_harness
import torch
from site_harness import CLIENT

from offbeat.core.jobs import Job, Result
from offbeat.core.strategies import REGISTRY
from offbeat.deploy import message_codec
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.workers.inline import Inline

SETTINGS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.1},
    "fedbuff": {"k": 2},
    "ca2fl": {"k": 2},
    "fedfa": {"k": 2},
    "flanp": {"n0": 3},
    "fedpsa": {"buffer": 2, "queue": 3, "sketch": 4},
}


def played(name: str) -> tuple[list[tuple[Job, Result]], set[int], build.Setup, Any]:
    """Every job of one client in a short simulation with its result, and the tickets that were accepted."""
    of = site_harness.experiment(name, SETTINGS.get(name), until=Until(updates=12))
    made = build.setup(of)
    seen: list[tuple[Job, Result]] = []

    def train(job: Job) -> Result:
        done = made.trainer(job)
        if job.client == CLIENT:
            seen.append((job, done))
        return done

    engine = build.build_engine(made, of, worker=Inline(train))
    engine.run()
    engine.trace.flush()
    rows = engine.trace.db.execute("SELECT kind, ticket FROM trace WHERE ticket IS NOT NULL").fetchall()
    refused = {ticket for kind, ticket in rows if kind in ("reject", "refuse")}
    arrived = {ticket for kind, ticket in rows if kind == "arrive"}
    return seen, arrived - refused, made, of


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "global"])
def test_every_strategys_jobs_end_at_a_site_as_they_do_inline(name: str, tmp_path: Path) -> None:
    seen, accepted, _, of = played(name)
    assert len(seen) >= 2
    site, last = site_harness.site(tmp_path, CLIENT), None
    site.handle(site_harness.greeting(of))
    for job, expected in seen:
        data = message_codec.encode(site_harness.assignment(job, last), site_harness.RUN)
        got = site_harness.result(site.handle(data))
        assert (got.ticket, got.num_examples, got.steps) == (expected.ticket, expected.num_examples, expected.steps)
        assert torch.equal(got.local, expected.local)
        assert got.extras.keys() == expected.extras.keys()
        assert all(torch.equal(got.extras[key], extra) for key, extra in expected.extras.items())
        assert got.memory == {}  # it stays here
        last = job.ticket if job.ticket in accepted else last
