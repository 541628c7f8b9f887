"""Recommendations on numbers with known answers, and plans of tournaments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offbeat.core.about import About
from offbeat.engine.until import Target, Until
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics.trace_summary import Summary
from offbeat.results import method_choice
from offbeat.results.method_choice import Candidate, recommend
from results import messages

NOTHING = About("synchronous", keeps="nothing", uploads="model")
MODEL = About("asynchronous", keeps="its last model", uploads="model")


def summary(acc: float, moved: int = 1000, **changes) -> Summary:
    plan = Summary("seconds", 100.0, 10, 5, {"acc": acc}, None, 2.0, 4, moved // 2, moved - moved // 2, 0.0, 4)
    return replace(plan, learned=True, server_bytes=400.0, **changes)


def candidate(label: str, accs, moved: int = 1000, about: About = NOTHING, **changes) -> Candidate:
    result = {seed: summary(acc, moved, **changes) for seed, acc in enumerate(accs)}
    return Candidate(label, label.partition("(")[0], about, result)


def test_a_clear_winner_is_recommended():
    result = recommend([candidate("fedavg", [0.50, 0.52, 0.51]), candidate("fedasync", [0.90, 0.91, 0.92])])
    assert (result.recommended, result.tied, result.best) == ("fedasync", ["fedasync"], "fedasync")
    # differences -0.40, -0.39, -0.41: mean -0.40, s = 0.01, half = 4.303 * 0.01 / sqrt(3) = 0.0248
    gap = result.differences["fedavg"]
    assert (gap.mean, gap.half) == (pytest.approx(-0.40), pytest.approx(0.0248, abs=1e-4))
    assert result.why == messages.CLEAR_WINNER


def test_the_cheapest_of_tied_methods_is_recommended():
    result = recommend(
        [candidate("fedbuff", [0.9, 0.8, 0.7], moved=2000), candidate("fedavg", [0.7, 0.8, 0.88], moved=900)]
    )
    assert set(result.tied) == {"fedavg", "fedbuff"}
    assert result.best == "fedbuff"
    assert result.recommended == "fedavg"
    assert all(words in result.why for words in messages.CHEAPEST)


def test_with_similar_bytes_the_method_with_less_state_is_recommended():
    """1000 and 1040 bytes are within a twentieth."""
    light, heavy = candidate("orthofl", [0.8, 0.8], 1040), candidate("fedasync", [0.8, 0.8], 1000, MODEL)
    assert (heavy.kept_per_client, light.kept_per_client) == (100.0, 0.0)  # 400 bytes for 4 clients
    result = recommend([heavy, light])
    assert result.recommended == "orthofl"
    assert messages.LEAST_STATE in result.why


def test_otherwise_the_simplest_is_recommended():
    result = recommend([candidate(name, [0.8, 0.8]) for name in ("fedprox", "mine", "fedavg")])
    assert result.recommended == "fedavg"
    assert messages.SIMPLEST in result.why


def test_one_seed_is_always_a_tie():
    result = recommend([candidate("fedavg", [0.2]), candidate("fedasync", [0.9])])
    assert len(result.tied) == 2
    assert messages.ONE_SEED in result.why


def test_lower_can_be_better():
    plan = {
        name: Candidate(name, name, NOTHING, {s: replace(summary(0), metrics={"loss": v}) for s, v in enumerate(each)})
        for name, each in {"fedavg": [2.0, 2.1], "fedasync": [1.0, 1.1]}.items()
    }
    assert recommend(list(plan.values())).recommended == "fedasync"


@pytest.mark.parametrize(("changes", "why"), messages.EXCLUDED)
def test_a_method_with_broken_runs_is_never_recommended(changes, why):
    best = candidate("fedasync", [0.9, 0.91])
    broken = replace(best, summaries={**best.summaries, 1: replace(best.summaries[1], **changes)})
    result = recommend([broken, candidate("fedavg", [0.5, 0.5])])
    assert result.recommended == "fedavg"
    assert why in result.excluded["fedasync"]
    assert "fedasync" not in result.tied
    assert result.why == messages.NO_OTHER
    alone = recommend([broken])
    assert alone.recommended is None
    assert alone.why.startswith(messages.NO_METHOD)


def test_refusals_do_not_count_if_the_scenario_damages_updates():
    hit = candidate("fedavg", [0.5, 0.6], refused={"not finite": 1})
    assert recommend([hit], faulty_updates=True).recommended == "fedavg"
    assert recommend([hit]).recommended is None


def test_only_seeds_that_all_methods_have_finished_count():
    result = recommend([candidate("fedavg", [0.9, 0.9, 0.1]), candidate("fedasync", [0.8, 0.8])])
    assert result.seeds == [0, 1]
    assert result.best == "fedavg"
    unfinished = recommend([candidate("fedavg", [0.9]), candidate("fedasync", [])])
    assert (unfinished.recommended, unfinished.seeds) == (None, ())
    assert method_choice.recommendation_json(unfinished)["methods"][1]["final"] is None


def four(seconds=1000.0):
    return {name: Experiment(until=Until(seconds=seconds)) for name in ("a", "b", "c", "d")}


def test_short_runs_get_all_seeds():
    plan = method_choice.plan_tournament(four(), budget=120, run_seconds=1.0, cores=2)  # 2 s a seed, 110 s available
    assert (plan.seeds, plan.until.seconds, plan.shortened) == (5, 1000.0, 1.0)
    assert plan.expected == pytest.approx(10 + 2 * 5)


def test_long_runs_get_fewer_seeds_and_then_less_time():
    # 30 s a seed: three fit into 110
    fewer = method_choice.plan_tournament(four(), budget=120, run_seconds=15.0, cores=2)
    assert (fewer.seeds, fewer.until.seconds) == (3, 1000.0)
    shorter = method_choice.plan_tournament(four(), budget=120, run_seconds=100.0, cores=2)  # 200 s a seed: 110 of 600
    assert (shorter.seeds, shorter.until.seconds) == (3, 180.0)
    assert shorter.expected == pytest.approx(120)


def test_requested_seeds_and_ends_are_kept():
    plan = method_choice.plan_tournament(four(), budget=10, seeds=7, fixed=True, run_seconds=100.0)
    assert (plan.seeds, plan.until.seconds, plan.expected) == (7, 1000.0, None)
    plan = method_choice.plan_tournament(four(), budget=10, fixed=True, run_seconds=100.0, cores=2)
    assert plan.until.seconds == 1000.0


def test_a_tournament_does_not_end_at_a_target():
    experiment = Experiment(until=Until(seconds=100, target=Target("acc", 0.9)))
    plan = method_choice.without_target(experiment)
    assert plan.until == Until(seconds=100)
    assert plan.target == Target("acc", 0.9)


def test_a_short_run_is_evaluated_often_enough():
    plan = method_choice.with_end(Experiment(evaluate_every=60.0), Until(seconds=100))
    assert plan.evaluate_every is None
    assert method_choice.with_end(Experiment(evaluate_every=20.0), Until(seconds=100)).evaluate_every == 20.0
