"""Tests of summaries of a handwritten trace, with values worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import pytest
import torch

import offbeat
from experiment import messages
from offbeat.core.errors import ConfigError, RunError
from offbeat.engine.trace import Trace
from offbeat.engine.until import Target
from offbeat.engine.virtual.virtual_engine import NOTHING_LEFT
from offbeat.experiment import comparison as compare
from offbeat.metrics import measures, trace_summary
from offbeat.metrics.trace_summary import JobSpan, Summary
from offbeat.scenario.availability import Dropout
from offbeat.scenario.delays import ConstantDelays


@pytest.fixture
def trace() -> Trace:
    """Two clients, 100 bytes a model, ten seconds.

    client 0: ticket 0 from 0 to 4, arrives fresh; ticket 2 from 4 to 8, arrives with staleness 1
    client 1: ticket 1 from 0 to 6, refused; ticket 3 from 7 on, not back when the run ends
    """
    trace = Trace()
    trace.add(0, "dispatch", 0, client=0, ticket=0, size=100)
    trace.add(0, "dispatch", 0, client=1, ticket=1, size=100)
    trace.metrics(0, 0, 0, {"loss": 2.0, "acc": 0.1})
    trace.add(4, "arrive", 0, client=0, ticket=0, base_version=0, steps=5, examples=10, size=110)
    trace.commit(4, 1)
    trace.add(4, "dispatch", 1, client=0, ticket=2, size=100)
    trace.metrics(5, 1, 1, {"loss": 1.0, "acc": 0.6})
    trace.add(6, "refuse", 1, client=1, ticket=1, detail="numbers that are not finite")
    trace.commit(7, 2)
    trace.add(7, "dispatch", 2, client=1, ticket=3, size=100)
    trace.add(8, "arrive", 2, client=0, ticket=2, base_version=1, steps=5, examples=10, size=110)
    trace.add(8, "reject", 2, client=0, ticket=2, detail="too old")
    trace.metrics(10, 2, 1, {"loss": nan, "acc": 0.7})
    trace.add(10, "stop", 2, detail="seconds")
    trace.flush()
    return trace


def test_a_summary_follows_from_the_rows(trace):
    s = trace_summary.summarize(trace.db, clients=2, target=Target("acc", 0.6))
    assert (s.ended, s.seconds, s.clients) == ("seconds", 10.0, 2)
    assert (s.updates, s.versions, s.rejected, s.lost, s.late) == (1, 2, 1, 0, 0)  # two arrived, one of them rejected
    assert s.refused == {"numbers that are not finite": 1}
    assert (s.staleness_mean, s.staleness_max) == (0.5, 1)  # 0 and 1
    assert (s.bytes_down, s.bytes_up) == (400, 220)
    assert s.idle_share == pytest.approx(1 - (4 + 4 + 6 + 3) / 20)  # busy 8 s and 9 s of 10 s each
    assert s.time_to_target == 5.0
    assert s.metrics["acc"] == 0.7
    assert isnan(s.metrics["loss"])


def test_a_summary_is_strict_json(trace):
    text = json.dumps(trace_summary.summarize(trace.db, clients=2).as_json(), allow_nan=False)
    told = json.loads(text)
    assert told["metrics"] == {"loss": None, "acc": 0.7}
    assert told["wall_seconds"] is None
    assert told["time_to_target"] is None  # none was asked for


def test_spans_show_when_clients_trained(trace):
    assert trace_summary.job_spans(trace.db, end=10.0) == [
        JobSpan(0, 0.0, 4.0, "arrive"),
        JobSpan(1, 0.0, 6.0, "refuse"),
        JobSpan(0, 4.0, 8.0, "arrive"),
        JobSpan(1, 7.0, 10.0, "open"),
    ]


def test_curves_are_on_the_evaluation_grid(trace):
    assert trace_summary.metric_names(trace.db) == ["loss", "acc"]
    assert trace_summary.read_curve(trace.db, "acc") == trace_summary.Curve([0.0, 5.0, 10.0], [0.1, 0.6, 0.7])
    assert trace_summary.time_to_target(trace.db, Target("acc", 0.65)) == 10.0
    assert trace_summary.time_to_target(trace.db, Target("acc", 0.9)) is None
    # lower is better; what is not a number reaches nothing
    assert trace_summary.time_to_target(trace.db, Target("loss", 1.5)) == 5.0
    assert trace_summary.time_to_target(trace.db, Target("loss", 0.5)) is None


def test_metric_directions_come_from_the_run(trace):
    # a task of somebody's own, who calls an error acc
    trace.set_facts({trace_summary.DIRECTIONS: '{"loss": false, "acc": false}'})
    s = trace_summary.summarize(trace.db, clients=2, target=Target("acc", 0.1))
    assert s.higher_is_better == {"loss": False, "acc": False}
    assert (s.best, s.time_to_target) == (0.1, 0.0)
    assert (s.higher("acc"), s.higher("acc/slowest")) == (False, False)


def test_a_run_of_before_directions_were_stored_goes_by_names(trace):
    s = trace_summary.summarize(trace.db, clients=2, target=Target("acc", 0.65))
    assert s.higher_is_better == {}
    assert (s.best, s.time_to_target) == (0.7, 10.0)
    assert (s.higher("acc"), s.higher("loss"), s.higher("loss/slowest")) == (True, False, False)


@pytest.mark.parametrize("value", ["{", "[1]", "7", "[" * 100_000])
def test_damaged_directions_are_one_line(trace, value):
    trace.set_facts({trace_summary.DIRECTIONS: value})
    with messages.expect(messages.DAMAGED_DIRECTIONS, error=RunError):
        trace_summary.summarize(trace.db, clients=2)


def test_unfinished_and_empty_runs_have_a_summary():
    trace = Trace()
    s = trace_summary.summarize(trace.db, clients=3)
    assert (s.seconds, s.updates, s.idle_share, s.staleness_mean) == (0.0, 0, 0.0, 0.0)
    trace.add(0, "dispatch", 0, client=0, ticket=0, size=100)
    trace.add(3, "arrive", 0, client=0, ticket=0, base_version=0, steps=1, examples=1, size=100)
    trace.flush()
    s = trace_summary.summarize(trace.db, clients=1)
    assert (s.ended, s.seconds, s.updates, s.metrics) == ("not finished", 3.0, 1, {})


def test_a_file_that_is_no_trace_is_one_line(tmp_path):
    path = tmp_path / "run.sqlite"
    with messages.expect(messages.NO_RUN_FOLDER, error=RunError), trace_summary.open_trace(path):
        pass
    path.write_bytes(b"something else entirely" * 200)
    with messages.expect(messages.NO_TRACE, error=RunError), trace_summary.open_trace(path) as db:
        trace_summary.summarize(db, 1)


def test_a_path_with_odd_characters_is_opened(tmp_path):
    path = tmp_path / "50% a?b#c" / "run.sqlite"
    path.parent.mkdir()
    Trace(path).close()
    with trace_summary.open_trace(path) as db:
        assert trace_summary.staleness_values(db) == []


# ---------------------------------------------------------------- rows of a comparison


TARGET = Target("acc", 0.9)


def summary(acc: float, reached: float | None) -> Summary:
    made = Summary("seconds", 100.0, 10, 5, {"loss": 1.0, "acc": acc}, reached, 2.0, 4, 1000, 500, 0.25, 3)
    return replace(made, target=str(TARGET))


def row(*given: Summary, reference: float | None = None, **compared: float) -> measures.MethodRow:
    speed_up = measures.speed_up(given, [summary(0.5, reference)])
    return measures.average_over_seeds("mine", given, {"speedup": speed_up, **compared})


def cells(row: measures.MethodRow, target: Target | None = TARGET) -> list[str]:
    return measures.measure_table([row], target)[1]


def test_a_row_has_mean_and_standard_deviation_over_seeds():
    made = row(summary(0.5, 20.0), summary(0.7, 40.0), reference=90.0)
    assert made["final"] == pytest.approx(0.6)
    assert made["spread"] == pytest.approx(0.02**0.5)  # sqrt((0.1^2 + 0.1^2) / (2 - 1))
    assert (made["time_to_target"], made["reached"]) == (30.0, 2)
    assert made["speedup"] == pytest.approx(3.0)
    assert made["bytes_moved"] == 1500
    assert cells(made) == ["mine", "0.600 ± 0.141", "–", "30 s", "3.00×", "2.0", "1.5 kB", "25%", "10"]


def test_the_best_value_is_a_mean_over_seeds():
    made = row(replace(summary(0.5, 20.0), best=0.8), replace(summary(0.7, 40.0), best=0.9))
    assert made["best"] == pytest.approx(0.85)
    assert made["best_spread"] == pytest.approx(0.005**0.5)  # sqrt((0.05^2 + 0.05^2) / (2 - 1))
    names, shown = measures.measure_table([made], None, "page")
    assert shown[names.index("best")] == "0.850 ± 0.071"


def test_a_diverged_seed_leaves_no_standard_deviation():
    made = row(summary(nan, None), summary(0.7, 40.0))
    assert all(isnan(made[key]) for key in ("final", "spread"))
    assert cells(made)[1] == "nan"


def test_a_seed_that_did_not_reach_the_target_is_not_averaged_away():
    made = row(summary(0.5, 20.0), summary(0.7, None), reference=90.0)
    assert (made["time_to_target"], made["reached"]) == (20.0, 1)  # of the one that did
    assert made["restricted_time"] == 60.0  # 20 s, and 100 s in which the other did not: the mean is larger than 60 s
    assert isnan(made["speedup"])
    assert cells(made)[3:5] == ["> 60 s (1 of 2)", "–"]
    assert made.as_json()["speedup"] is None


def test_unreached_targets_and_single_seeds_are_marked():
    made = row(summary(0.5, None))
    assert cells(made)[1:5] == ["0.500", "–", "> 100 s", "–"]
    assert cells(row(summary(0.5, None), summary(0.6, None)))[3] == "> 100 s (0 of 2)"
    assert isnan(row(replace(summary(0.5, None), target=None))["restricted_time"])  # there was nothing to reach
    assert measures.measure_table([made], TARGET)[0][:4] == ["strategy", "final acc", "slowest ¼", "time to acc=0.9"]


def test_without_a_target_times_are_relative():
    made = row(summary(0.5, None), relative_time=0.42)
    assert measures.measure_table([made], None)[0][2:5] == ["slowest ¼", "relative time", "staleness"]
    assert cells(made, None)[2:5] == ["–", "0.42", "2.0"]
    assert len(measures.measure_table([made], None)[0]) == len(cells(made, None)) == len(cells(made)) - 1


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (3e12, "3.0 TB")]
)
def test_sizes_are_readable(count, text):
    assert trace_summary.format_bytes(count) == text


def test_an_empty_comparison_is_rejected(tmp_path):
    with messages.expect("at least one strategy and one seed", error=ConfigError):
        compare.create_comparison(Path(tmp_path), {}, [0])


def test_duplicate_arrivals_are_counted_with_their_bytes(trace):
    trace.add(9, "duplicate", 2, client=0, ticket=2, size=100)
    trace.flush()
    s = trace_summary.summarize(trace.db, clients=2)
    assert (s.duplicates, s.bytes_up) == (1, 220 + 100)


def test_curves_and_idle_share_reach_the_end_if_all_clients_drop_out():
    clients = [(torch.randn(8, 3), torch.arange(8) % 2) for _ in range(2)]
    delays, dropout = ConstantDelays(mean=10.0, jitter=0.0), Dropout(share=1.0, at=100.0)
    done = offbeat.simulate(torch.nn.Linear(3, 2), clients, delays=delays, availability=dropout, until="1000s")
    # ten jobs of 10 s each; then 900 s of 1000 s without clients
    assert (done.outcome.reason, done.summary.seconds, done.summary.updates) == (NOTHING_LEFT, 1000.0, 20)
    assert done.summary.idle_share == pytest.approx(0.9)
    assert trace_summary.read_curve(done.trace.db, "acc").seconds[-1] == 1000.0
