"""Metrics of learning curves, compared with numbers worked by hand."""

from __future__ import annotations

from math import isnan, nan

import pytest

from metrics import messages
from offbeat.core.errors import ConfigError
from offbeat.engine.trace import Trace
from offbeat.engine.until import Target
from offbeat.metrics import curves, trace_summary
from offbeat.metrics.curves import Curve


def test_the_area_under_a_learning_curve_is_in_days():
    # half a day from 0 to 0.4 (mean 0.2), then one day from 0.4 to 0.6 (mean 0.5): 0.1 + 0.5
    curve = Curve([0.0, 43_200.0, 129_600.0], [0.0, 0.4, 0.6])
    assert curves.aulc(curve) == pytest.approx(0.6)
    assert curves.aulc(Curve([0.0, 10.0, 864_000.0], [0.5, nan, 0.5])) == pytest.approx(5.0)  # ten days at one half
    assert curves.aulc(Curve([7.0], [0.5])) == 0
    assert isnan(curves.aulc(Curve([], [])))


def test_the_best_value_is_the_largest_or_the_smallest_if_lower_is_better():
    curve = Curve([0, 10, 20, 30], [0.1, 0.9, nan, 0.7])
    assert (curves.best_value(curve, higher=True), curves.best_value(curve, higher=False)) == (0.9, 0.1)
    assert isnan(curves.best_value(Curve([0], [nan]), higher=True))


def test_variance_is_the_unfairness_of_fed_ogd():
    # a = 0.5, a1 = 0.6, a2 = 0.3: (0.01 + 0.04) / 2
    assert curves.variance(0.5, 0.6, 0.3) == pytest.approx(0.025)


def test_forgetting_is_the_fall_from_an_update_to_the_last_evaluation_before_the_next_update():
    # updates of slow client 7 arrive at 10, 40 and 70; an evaluation at the same instant comes after them
    curve = Curve([0, 10, 20, 30, 40, 50, 60, 70, 80], [0.1, 0.8, 0.6, 0.5, 0.9, 0.7, 0.8, 0.9, 0.2])
    # 10 to 30: 0.8 - 0.5 = 0.3; 40 to 60: 0.9 - 0.8 = 0.1; the gap after the last update is not complete
    assert curves.forgetting(curve, {7: [10, 40, 70]}) == pytest.approx(0.2)
    # client 8 adds the gap from 25 to 45: 0.5 at 30 and 0.9 at 40, which is a gain of 0.4
    assert curves.forgetting(curve, {7: [10, 40, 70], 8: [25, 45]}) == pytest.approx((0.3 + 0.1 - 0.4) / 3)
    assert isnan(curves.forgetting(curve, {7: [10, 15, 20]}))  # the grid is too coarse


def test_the_shared_target_is_reached_by_every_method():
    by_method = {"a": [Curve([0, 1], [0.1, 0.8]), Curve([0, 1], [0.1, 0.6])], "b": [Curve([0, 1], [0.1, 0.9])] * 2}
    lowest = curves.shared_target(by_method, "acc", higher=True)
    assert lowest is not None
    assert lowest.value == pytest.approx(0.95 * 0.7)
    highest = curves.shared_target(by_method, "mae", higher=False)  # less is better: the worst is the highest
    assert highest is not None
    assert highest.value == pytest.approx(0.9 / 0.95)
    with pytest.raises(ConfigError, match=messages.INVALID_SHARE):
        curves.shared_target(by_method, "acc", True, share=2)


def test_a_diverged_method_sets_no_target():
    broken = [Curve([0, 1], [0.1, nan])]
    by_method = {"a": [Curve([0, 1], [0.1, 0.8])], "b": broken}
    assert curves.shared_target(by_method, "acc", True) == Target("acc", 0.8 * 0.95, True)
    assert curves.shared_target({"b": broken}, "acc", True) is None


def test_relative_time_is_divided_by_that_of_the_reference():
    fast, slow = Curve([0, 10, 20, 30], [0.1, 0.6, 0.7, 0.8]), Curve([0, 10, 20, 30], [0.1, 0.2, 0.6, 0.6])
    by_method = {"fedavg": [slow, slow], "mine": [fast, slow], "never": [fast, Curve([0, 10], [0.1, 0.1])]}
    # to 0.6: fedavg 20 and 20, mine 10 and 20; one seed of the third never gets there
    times = curves.relative_times(by_method, Target("acc", 0.6), "fedavg")
    assert (times["fedavg"], times["mine"]) == (1.0, pytest.approx(15 / 20))
    assert isnan(times["never"])
    assert curves.relative_times(by_method, Target("acc", 0.6), "mine")["fedavg"] == pytest.approx(20 / 15)
    with pytest.raises(ConfigError, match=messages.UNKNOWN_METHOD):
        curves.relative_times(by_method, Target("acc", 0.6), "fedawg")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["loss", "acc", "f1", "acc/all"], "acc"),
        (["loss", "mae", "smape"], "mae"),
        (["loss", "f1", "precision"], "f1"),
        (["loss"], "loss"),
    ],
)
def test_the_headline_metric_is_accuracy_or_the_first_after_the_loss(names, shown):
    assert curves.headline_metric(names) == shown


@pytest.fixture
def trace() -> Trace:
    """Client 1 is the slowest: its updates arrive at 10 and 40. Its classes fall from 0.8 to 0.6 between."""
    trace = Trace()
    for now, acc, slow in ((0, 0.1, 0.1), (10, 0.5, 0.8), (30, 0.6, 0.6), (40, 0.7, 0.9)):
        if now in (10, 40):
            trace.add(now, "arrive", 0, client=1, ticket=now, base_version=0, size=1)
        trace.metrics(now, 0, 0, {"loss": 1.0, "acc": acc, "acc/slow_classes": slow})
    trace.clients(40, 0, {0: {"loss": 1.0, "acc": 0.9}, 1: {"loss": 2.0, "acc": nan}})
    trace.metrics(40, 0, 0, {"acc/all": 0.5, "acc/active": 0.6, "acc/stragglers": 0.3, "acc/slowest": 0.25})
    trace.set_facts({"surveyed": "training examples", "slowest": "1"})
    trace.add(40, "stop", 0, detail="seconds")
    trace.flush()
    return trace


def test_a_summary_has_groups_of_clients_and_single_clients(trace):
    s = trace_summary.summarize(trace.db, clients=2)
    assert s.metrics == {"loss": 1.0, "acc": 0.7}  # the survey came later, at the same time: both are the end
    assert s.groups["acc/slow_classes"] == 0.9
    assert s.of_group("slowest") == 0.25
    assert s.variance == pytest.approx(0.025)
    assert s.forgetting == pytest.approx(0.2)
    assert s.by_client[0] == 0.9
    assert isnan(s.by_client[1])
    assert s.surveyed == "training examples"
    # 10 s · 0.3 + 20 s · 0.55 + 10 s · 0.65
    assert s.aulc == pytest.approx(20.5 / 86_400)
