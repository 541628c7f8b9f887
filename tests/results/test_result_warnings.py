"""Caveats about results, from traces with known defects."""

from __future__ import annotations

import pytest
from handwritten_runs import TARGET, empty_run, write_run

from offbeat.results import result_warnings, series


def of(runs, names=None):
    return result_warnings.find_warnings(series.collect_series(runs, names))


def test_three_seeds_that_agree_have_no_caveats(tmp_path):
    runs = {
        name: [write_run(tmp_path / f"{name}{seed}", name, seed, final + seed / 1000) for seed in range(3)]
        for name, final in (("fedavg", 0.8), ("fedbuff", 0.9))
    }
    assert of(runs) == []


def test_one_seed_only(tmp_path):
    one = write_run(tmp_path / "a")
    assert of({"fedavg": [one]}) == ["only one seed: another seed may reverse differences"]
    two = [write_run(tmp_path / "b", "fedbuff", final=0.7), write_run(tmp_path / "c", "fedbuff", 1, final=0.7)]
    assert of({"fedavg": [one], "fedbuff": two}) == ["only one seed of fedavg: another seed may reverse differences"]


def test_a_small_difference_is_no_clear_winner(tmp_path):
    # means 0.85 and 0.84; the deviation of 0.8 and 0.9 is 0.1 / sqrt 2 = 0.071
    runs = {
        "fedavg": [write_run(tmp_path / "a", final=0.8), write_run(tmp_path / "b", seed=1, final=0.9)],
        "fedbuff": [
            write_run(tmp_path / "c", "fedbuff", final=0.84),
            write_run(tmp_path / "d", "fedbuff", 1, final=0.84),
        ],
    }
    (line,) = of(runs)
    assert line == (
        "no clear winner: the final acc of fedavg and fedbuff differs by 0.010, less than the seed-to-seed SD of 0.071"
    )


def test_a_target_reached_at_a_single_evaluation(tmp_path):
    run, trace = empty_run(tmp_path / "a", target=TARGET)
    trace.add(1, "arrive", 0, 0, 0, 0, 1, 1)
    for now, acc in enumerate((0.1, 0.5, 0.86, 0.7, 0.8)):
        trace.metrics(float(now), 0, 1, {"acc": acc})
    trace.add(4, "stop", 0, detail="seconds")
    trace.close()
    assert "fedavg: reached the target acc=0.85 at a single evaluation only (2 s)" in of({"fedavg": [run]})


@pytest.mark.parametrize("last", [0.86, 0.9])
def test_a_target_reached_at_the_end_has_no_caveat(tmp_path, last):
    run = write_run(tmp_path / "a", final=last, target=TARGET)
    assert not any("single evaluation" in line for line in of({"fedavg": [run]}))


def test_clients_without_accepted_updates_are_named(tmp_path):
    run, trace = empty_run(tmp_path / "a", clients=9)
    trace.add(1, "arrive", 0, 3, 0, 0, 1, 1)
    trace.add(2, "arrive", 0, 4, 1, 0, 1, 1)
    trace.add(2, "reject", 0, 4, 1)  # it does not count
    trace.metrics(0, 0, 0, {"acc": 0.1})
    trace.metrics(9, 0, 1, {"acc": 0.2})
    trace.add(9, "stop", 0, detail="seconds")
    trace.close()
    lines = of({"fedavg": [run]}, {0: "bern"})
    # by speed: client 4, whose job is unknown here, and all others were never timed, so by number
    assert (
        "fedavg: no update of 8 clients was accepted, so the model did not learn from their data: "
        "bern, 1, 2, 4, 5 and 3 more" in lines
    )
    assert "fedavg: 1 of 2 jobs were rejected by the strategy" in lines


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
    expected = (
        "1 of 10 jobs were refused by the gate, 1 of 10 jobs were lost, "
        "most often refused for numbers that are not finite"
    )
    assert f"fedavg: {expected}" in of({"fedavg": [run]})


def test_a_run_that_ended_early_or_is_not_finished(tmp_path):
    early = write_run(tmp_path / "a", ended="nothing left to happen")
    going = write_run(tmp_path / "b", seed=1, ended=None)
    lines = of({"fedavg": [early, going]})
    assert "fedavg, seed 0: ended early, after 100 seconds: nothing left to happen" in lines
    assert "fedavg, seed 1: not finished; these are the results after 100 seconds" in lines


def test_nothing_was_learned(tmp_path):
    flat = write_run(tmp_path / "a", final=0.1)
    lines = of({"fedavg": [flat]})
    assert "fedavg: learned nothing: acc was never better than at the start (0.100)" in lines
    silent, trace = empty_run(tmp_path / "b")
    trace.add(9, "stop", 0, detail="seconds")
    trace.close()
    assert "fedavg: learned nothing: no update was accepted" in of({"fedavg": [silent]})


def test_equal_caveats_are_merged(tmp_path):
    runs = {"fedavg": [write_run(tmp_path / str(seed), seed=seed, final=0.1) for seed in range(2)]}
    assert "fedavg, seed 0; fedavg, seed 1: learned nothing: acc was never better than at the start (0.100)" in of(runs)
