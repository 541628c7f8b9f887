"""Caveats about results, from traces with known defects."""

from __future__ import annotations

import pytest
from handwritten_runs import TARGET, empty_run, write_run

from offbeat.results import result_warnings, series
from results import messages


def caveats(runs, names=None):
    return result_warnings.find_warnings(series.collect_series(runs, names))


def test_three_seeds_that_agree_have_no_caveats(tmp_path):
    runs = {
        name: [write_run(tmp_path / f"{name}{seed}", name, seed, final + seed / 1000) for seed in range(3)]
        for name, final in (("fedavg", 0.8), ("fedbuff", 0.9))
    }
    assert caveats(runs) == []


def test_one_seed_only(tmp_path):
    one = write_run(tmp_path / "a")
    assert caveats({"fedavg": [one]}) == [messages.SINGLE_SEED]
    two = [write_run(tmp_path / "b", "fedbuff", final=0.7), write_run(tmp_path / "c", "fedbuff", 1, final=0.7)]
    assert caveats({"fedavg": [one], "fedbuff": two}) == [messages.SINGLE_SEED_OF]


def test_a_small_difference_is_no_clear_winner(tmp_path):
    # means 0.85 and 0.84; the deviation of 0.8 and 0.9 is 0.1 / sqrt 2 = 0.071
    runs = {
        "fedavg": [write_run(tmp_path / "a", final=0.8), write_run(tmp_path / "b", seed=1, final=0.9)],
        "fedbuff": [
            write_run(tmp_path / "c", "fedbuff", final=0.84),
            write_run(tmp_path / "d", "fedbuff", 1, final=0.84),
        ],
    }
    assert caveats(runs) == [messages.NO_WINNER]


def test_a_target_reached_at_a_single_evaluation(tmp_path):
    run, trace = empty_run(tmp_path / "a", target=TARGET)
    trace.add(1, "arrive", 0, 0, 0, 0, 1, 1)
    for now, acc in enumerate((0.1, 0.5, 0.86, 0.7, 0.8)):
        trace.metrics(float(now), 0, 1, {"acc": acc})
    trace.add(4, "stop", 0, detail="seconds")
    trace.close()
    assert messages.TARGET_ONCE in caveats({"fedavg": [run]})


@pytest.mark.parametrize("last", [0.86, 0.9])
def test_a_target_reached_at_the_end_has_no_caveat(tmp_path, last):
    run = write_run(tmp_path / "a", final=last, target=TARGET)
    assert not any("single evaluation" in line for line in caveats({"fedavg": [run]}))


def test_clients_without_accepted_updates_are_named(tmp_path):
    run, trace = empty_run(tmp_path / "a", clients=9)
    trace.add(1, "arrive", 0, 3, 0, 0, 1, 1)
    trace.add(2, "arrive", 0, 4, 1, 0, 1, 1)
    trace.add(2, "reject", 0, 4, 1)  # it does not count
    trace.metrics(0, 0, 0, {"acc": 0.1})
    trace.metrics(9, 0, 1, {"acc": 0.2})
    trace.add(9, "stop", 0, detail="seconds")
    trace.close()
    lines = caveats({"fedavg": [run]}, {0: "bern"})
    # by speed: client 4, whose job is unknown here, and all others were never timed, so by number
    assert messages.SILENT_CLIENTS in lines
    assert messages.REJECTED in lines


def test_many_refusals_and_losses(tmp_path):
    run, trace = empty_run(tmp_path / "a", clients=1)
    for ticket in range(8):
        trace.add(ticket, "arrive", 0, 0, ticket, 0, 1, 1)
    trace.add(8, "refuse", 0, 0, 8, detail="numbers that are not finite")
    trace.add(9, "lost", 0, 0, 9)
    trace.metrics(0, 0, 0, {"acc": 0.1})
    trace.metrics(9, 0, 8, {"acc": 0.2})
    trace.add(9, "stop", 0, detail="seconds")
    trace.close()
    assert messages.FAILURES in caveats({"fedavg": [run]})


def test_a_run_that_ended_early_or_is_not_finished(tmp_path):
    early = write_run(tmp_path / "a", ended="nothing left to happen")
    going = write_run(tmp_path / "b", seed=1, ended=None)
    lines = caveats({"fedavg": [early, going]})
    assert messages.EARLY_END in lines
    assert messages.NOT_FINISHED in lines


def test_nothing_was_learned(tmp_path):
    flat = write_run(tmp_path / "a", final=0.1)
    lines = caveats({"fedavg": [flat]})
    assert f"fedavg: {messages.NEVER_BETTER}" in lines
    silent, trace = empty_run(tmp_path / "b")
    trace.add(9, "stop", 0, detail="seconds")
    trace.close()
    assert messages.NO_UPDATE in caveats({"fedavg": [silent]})


def test_equal_caveats_are_merged(tmp_path):
    runs = {"fedavg": [write_run(tmp_path / str(seed), seed=seed, final=0.1) for seed in range(2)]}
    assert f"fedavg, seed 0; fedavg, seed 1: {messages.NEVER_BETTER}" in caveats(runs)
