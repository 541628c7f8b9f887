"""What is drawn, read off traces that were written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from handwritten_runs import TARGET, empty_run, write_run

from offbeat.core.errors import RunError
from offbeat.metrics.seed_statistics import quantiles_of_counts
from offbeat.results import series
from results import messages


@pytest.fixture
def both(tmp_path):
    runs = {
        "fedavg": [write_run(tmp_path / "a0", final=0.8), write_run(tmp_path / "a1", seed=1, final=0.9)],
        "fedbuff": [write_run(tmp_path / "b0", "fedbuff", final=0.7)],
    }
    return series.collect_series(runs)


def test_a_curve_is_the_mean_over_seeds_with_a_band(both):
    band = both.methods[0].band("acc")
    assert band.seconds.tolist() == list(range(0, 101, 2))
    assert (band.mean[-1], band.low[-1], band.high[-1]) == (pytest.approx(0.85), 0.8, 0.9)


def test_it_can_be_drawn_against_updates_and_bytes(both):
    # by the end client c of 4 has sent 100 // (4 + c) updates: 25 + 20 + 16 + 14 = 75; each brought 100 bytes,
    # and for each, and for the 4 first jobs, 100 went out: 75 * 100 + 79 * 100
    fedavg = both.methods[0]
    assert fedavg.stacked("updates").mean(axis=0)[-1] == 75
    moved = fedavg.stacked("moved").mean(axis=0)
    assert moved[-1] == 15_400
    assert moved[0] == 400  # the first evaluation comes after the first dispatches


def test_of_a_run_that_ended_early_the_last_value_stands(tmp_path):
    short, trace = empty_run(tmp_path / "short")
    trace.metrics(0, 0, 0, {"acc": 0.1})
    trace.metrics(4, 0, 0, {"acc": 0.2})
    trace.close()
    long = write_run(tmp_path / "long", seed=1, final=0.8)
    method = series.collect_series({"fedavg": [short, long]}).methods[0]
    assert method.band("acc").low[-1] == 0.2
    assert method.band("acc").mean[-1] == pytest.approx(0.5)


def test_what_is_no_number_is_left_out_of_the_mean(tmp_path):
    broken, trace = empty_run(tmp_path / "broken")
    trace.metrics(0, 0, 0, {"acc": 0.1})
    trace.metrics(100, 0, 0, {"acc": float("nan")})
    trace.close()
    method = series.collect_series({"fedavg": [broken]}).methods[0]
    assert np.isnan(method.band("acc").mean[-1])


def test_the_axis_begins_at_the_worst_mean_after_a_quarter_of_the_run(both):
    # from 25 s on the means are 0.85 and 0.7, the best seed has 0.9: 0.7 to 0.9 and a twentieth of 0.2 on both sides
    assert series.metric_axis_limits(both) == pytest.approx((0.69, 0.91))
    # of a loss, which is to fall, the same: 1 throughout, and a twentieth of it
    assert series.metric_axis_limits(both, "loss") == pytest.approx((0.95, 1.05))


def test_the_target_is_within_the_axis(tmp_path):
    found = series.collect_series({"fedavg": [write_run(tmp_path / "a", final=0.75, target=TARGET)]})
    assert series.metric_axis_limits(found) == pytest.approx((0.745, 0.855))  # 0.75 to 0.85, and 0.005


def test_clients_are_in_the_order_of_their_speed_and_may_have_names(tmp_path):
    found = series.collect_series({"fedavg": [write_run(tmp_path / "a")]}, {2: "bern"})
    assert found.clients == [0, 1, 2, 3]  # 4, 5, 6 and 7 seconds a job
    assert [found.client_name(c) for c in found.clients] == ["0", "1", "bern", "3"]
    assert found.methods[0].accepted == [{0: 25, 1: 20, 2: 16, 3: 14}]


def test_pictures_of_many_methods_show_fewer_clients_each(tmp_path, monkeypatch):
    monkeypatch.setattr(series, "MAX_LANES", 60)
    runs = {name: [write_run(tmp_path / name, name, clients=50)] for name in ("fedavg", "fedbuff", "fedasync")}
    found = series.collect_series(runs)
    assert [len(method.lanes.clients) for method in found.methods] == [20, 20, 20]
    assert len(found.clients) == 50


def test_runs_that_have_not_begun_are_left_out(tmp_path):
    waiting, _ = empty_run(tmp_path / "waiting", seed=1)
    found = series.collect_series({"fedavg": [write_run(tmp_path / "a"), waiting], "fedbuff": [waiting]})
    assert [(m.name, m.seeds) for m in found.methods] == [("fedavg", [0])]
    with pytest.raises(RunError, match=messages.NOTHING_STARTED):
        series.collect_series({"fedbuff": [waiting]})


def test_a_pooled_method_has_a_lane_of_its_own(tmp_path):
    runs = {"fedavg": [write_run(tmp_path / "a")], "global": [write_run(tmp_path / "g", "global")]}
    found = series.collect_series(runs)
    assert found.clients == [0, 1, 2, 3]
    assert found.methods[1].lanes.clients == [0]


def test_how_counts_are_spread():
    # of twenty: one 0, nine 1, nine 2, one 30; so the middle half is 1 to 2, and all but a twentieth is at most 2
    found = quantiles_of_counts({0: 1, 1: 9, 2: 9, 30: 1})
    assert (found.low, found.lower, found.median, found.upper, found.high) == (0, 1, 1, 2, 2)
    assert (found.mean, found.largest, found.count) == ((9 + 18 + 30) / 20, 30, 20)
    assert quantiles_of_counts({}) is None
