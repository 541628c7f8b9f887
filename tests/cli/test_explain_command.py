"""`offbeat explain` on runs of a tenth of a second: finished, killed, with names, and where everything goes wrong."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from command_line import refused

from cli import messages

# three clients of 10, 20 and 50 seconds a job, without a spread
WORLD = """
name: three
data: digits
model: linear
clients: 3
partition: iid
delays: {name: per_client, means: [10, 20, 50], jitter: 0}
training: {lr: 0.05, batch: 32, steps: 5}
until: 120s
evaluate_every: 60
"""


@pytest.fixture
def three(offbeat):
    """A run of that world, with these changes."""
    Path("three.yaml").write_text(WORLD)

    def run(*changes: str) -> str:
        made = offbeat("run", "three.yaml", *(word for change in changes for word in ("--set", change)), "--out", "r")
        assert made.status == 0, made.err
        return "r"

    return run


def told(offbeat, run, client, *more):
    return json.loads(offbeat("explain", run, "--client", client, *more, "--json").out)


def test_who_waits_in_a_round_is_told_for_whom(offbeat, three):
    """Rounds of 50 s: client 0 works for 10 of each, so for 10 + 10 + 10 of 120 s, and waits for client 2."""
    run = three("strategy=fedavg")
    found = told(offbeat, run, 0)
    assert found["shares"] == pytest.approx({"working": 0.25, "waiting": 0.75, "away": 0.0})
    assert [rest["waited_for"] for rest in found["rests"]] == [2, 2, None]  # the third round is still open
    made = offbeat("explain", run, "--client", "0")
    assert messages.MOSTLY_WAITED in made.out
    at = offbeat("explain", run, "--client", "0", "--at", "30")
    assert all(words in at.out for words in messages.WAITED_AT)


def test_a_buffer_of_three_is_told_with_who_is_in_it(offbeat, three):
    """Arrivals at 10 (0), 20 (0 and 1): the third fills the buffer; client 2 answers at 50."""
    found = told(offbeat, three("strategy=fedbuff(k=3)"), 1)
    first = found["jobs"][0]
    assert (first["sent"], first["ended"], first["committed"], first["with"]) == (0.0, 20.0, 1, [0, 0])
    assert first["weights"] == pytest.approx({"discount": 1.0, "share": 1 / 3})


def test_a_spoilt_update_is_refused_by_the_gate(offbeat, three):
    run = three("strategy=fedasync", "faults=[{name: corrupted, probability: 1.0, share: 1.0}]", "until=25s")
    found = told(offbeat, run, 0)
    assert found["outcomes"]["refuse"] == 2
    assert messages.GATE_REFUSED in offbeat("explain", run, "--client", "0").out


def test_a_ticket_that_expires_is_told_with_its_reason(offbeat, three):
    """A crash is noticed at ten times the expected 10 s."""
    run = three("strategy=fedasync", "faults=[{name: crash, probability: 1.0}]")
    first = told(offbeat, run, 0)["jobs"][0]
    assert (first["outcome"], first["ended"], first["reason"]) == ("lost", 100.0, "crashed")
    assert messages.EXPIRED in first["told"]


def test_a_client_that_never_comes_is_said_to_be_unknown_not_guessed_at(offbeat, three):
    run = three("strategy=fedasync", "availability={name: dropout, share: 1.0}")
    made = offbeat("explain", run, "--client", "1")
    assert made.status == 0
    assert messages.NEVER_SELECTED in made.out


def test_a_run_that_was_killed_is_explained_as_far_as_it_got(offbeat, killed):
    made = offbeat("explain", killed, "--client", "0")
    assert made.status == 0, made.err
    assert "not finished" in made.out
    found = told(offbeat, killed, 0)
    assert found["ended"] is None
    assert sum(found["shares"].values()) == pytest.approx(1)


@pytest.mark.parametrize("strategy", ["fedat", "safa", "fedcompass", "fed_ogd", "mifa", "fedpsa", "local", "flanp"])
def test_every_kind_of_method_is_told_without_a_contradiction(offbeat, three, strategy):
    run = three(f"strategy={strategy}")
    for client in range(3):
        found = told(offbeat, run, client)
        assert sum(found["shares"].values()) == pytest.approx(1), (strategy, client)
        for rest in found["rests"]:
            assert offbeat("explain", run, "--client", client, "--at", rest["start"]).status == 0


def test_sites_are_asked_for_by_name(offbeat, three):
    run = three("strategy=fedavg")
    Path(run, "model.safetensors").unlink()  # as of a run that goes on: a finished one is not to be changed
    with sqlite3.connect(f"{run}/run.sqlite") as db:
        db.execute("INSERT INTO facts VALUES ('names', ?)", (json.dumps({"0": "bern", "2": "zug"}),))
    made = offbeat("explain", run, "--client", "bern")
    assert "mostly for zug" in made.out
    refused(offbeat("explain", run, "--client", "basel"), *messages.NO_CLIENT)


def test_a_client_or_a_time_outside_of_the_run_is_one_line(offbeat, three):
    run = three("strategy=fedasync")
    for options, *words in messages.INVALID_MOMENTS:
        refused(offbeat("explain", run, *options.split()), *words)


def test_a_finished_run_whose_trace_was_changed_is_refused(offbeat, three):
    """As `offbeat show` refuses it: what is told must be what happened."""
    run = three()
    with closing(sqlite3.connect(Path(run) / "run.sqlite")) as db:
        db.execute("UPDATE trace SET now = now + 1 WHERE seq = (SELECT max(seq) FROM trace)")
        db.commit()
    refused(offbeat("explain", run, "--client", "0"), f"run.sqlite {messages.CHANGED_SINCE_END}", status=1)
