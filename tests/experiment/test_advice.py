"""Which method is recommended, on numbers whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offbeat.core.about import About
from offbeat.engine.until import Target, Until
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics.trace_summary import Summary
from offbeat.results import method_choice, tournament
from offbeat.results.method_choice import Candidate, give

NOTHING = About("synchronous", keeps="nothing", uploads="model")
MODEL = About("asynchronous", keeps="its last model", uploads="model")


def summary(acc: float, moved: int = 1000, **changes) -> Summary:
    made = Summary("seconds", 100.0, 10, 5, {"acc": acc}, None, 2.0, 4, moved // 2, moved - moved // 2, 0.0, 4)
    return replace(made, learned=True, server_bytes=400.0, **changes)


def candidate(label: str, accs, moved: int = 1000, about: About = NOTHING, **changes) -> Candidate:
    found = {seed: summary(acc, moved, **changes) for seed, acc in enumerate(accs)}
    return Candidate(label, label.partition("(")[0], about, found)


def test_a_clear_winner_is_taken():
    found = give([candidate("fedavg", [0.50, 0.52, 0.51]), candidate("fedasync", [0.90, 0.91, 0.92])])
    assert (found.taken, found.tied, found.best) == ("fedasync", ["fedasync"], "fedasync")
    # differences -0.40, -0.39, -0.41: mean -0.40, s = 0.01, half = 4.303 * 0.01 / sqrt(3) = 0.0248
    gap = found.differences["fedavg"]
    assert (gap.mean, gap.half) == (pytest.approx(-0.40), pytest.approx(0.0248, abs=1e-4))
    assert found.why == "take fedasync: its acc is the best over 3 seeds, and every other is worse by more than noise"


def test_equals_are_a_tie_and_the_cheapest_is_taken():
    found = give([candidate("fedbuff", [0.9, 0.8, 0.7], moved=2000), candidate("fedavg", [0.7, 0.8, 0.88], moved=900)])
    assert set(found.tied) == {"fedavg", "fedbuff"}
    assert found.best == "fedbuff"
    assert found.taken == "fedavg"
    assert "a tie between fedbuff and fedavg: over 3 seeds the differences are noise" in found.why
    assert "it moves the fewest bytes (900 B a run)" in found.why


def test_of_those_that_move_as_much_the_one_that_keeps_less_is_taken():
    """1000 and 1040 bytes are within a twentieth."""
    light, heavy = candidate("orthofl", [0.8, 0.8], 1040), candidate("fedasync", [0.8, 0.8], 1000, MODEL)
    assert (heavy.kept, light.kept) == (100.0, 0.0)  # 400 bytes for 4 clients
    found = give([heavy, light])
    assert found.taken == "orthofl"
    assert "keeps the least of each client" in found.why


def test_then_the_simplest():
    found = give([candidate("fedprox", [0.8, 0.8]), candidate("mine", [0.8, 0.8]), candidate("fedavg", [0.8, 0.8])])
    assert found.taken == "fedavg"
    assert "the simplest" in found.why


def test_one_seed_is_always_a_tie():
    found = give([candidate("fedavg", [0.2]), candidate("fedasync", [0.9])])
    assert len(found.tied) == 2
    assert "one seed cannot tell noise from a difference" in found.why


def test_what_is_lower_can_be_better():
    made = {
        name: Candidate(name, name, NOTHING, {s: replace(summary(0), metrics={"loss": v}) for s, v in enumerate(each)})
        for name, each in {"fedavg": [2.0, 2.1], "fedasync": [1.0, 1.1]}.items()
    }
    assert give(list(made.values())).taken == "fedasync"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"refused": {"not finite": 2}}, "2 of its updates were refused, most for not finite"),
        ({"learned": False}, "nothing was learned"),
        ({"ended": "100 jobs in a row were lost"}, "it ended early"),
    ],
)
def test_a_method_with_broken_runs_is_never_recommended(changes, why):
    best = candidate("fedasync", [0.9, 0.91])
    broken = replace(best, found={**best.found, 1: replace(best.found[1], **changes)})
    found = give([broken, candidate("fedavg", [0.5, 0.5])])
    assert found.taken == "fedavg"
    assert why in found.out["fedasync"]
    assert "fedasync" not in found.tied
    assert found.why == "take fedavg: no other method can be recommended"
    alone = give([broken])
    assert alone.taken is None
    assert alone.why.startswith("no method can be recommended: fedasync: seed 1")


def test_what_the_world_itself_spoils_is_nobodys_fault():
    hit = candidate("fedavg", [0.5, 0.6], refused={"not finite": 1})
    assert give([hit], spoilt=True).taken == "fedavg"
    assert give([hit]).taken is None


def test_only_seeds_that_all_have_finished_count():
    found = give([candidate("fedavg", [0.9, 0.9, 0.1]), candidate("fedasync", [0.8, 0.8])])
    assert found.seeds == [0, 1]
    assert found.best == "fedavg"
    nobody = give([candidate("fedavg", [0.9]), candidate("fedasync", [])])
    assert (nobody.taken, nobody.seeds) == (None, [])
    assert method_choice.plain(nobody)["methods"][1]["final"] is None


# ---------------------------------------------------------------- in bounded time


def four(seconds=1000.0):
    return {name: Experiment(until=Until(seconds=seconds)) for name in ("a", "b", "c", "d")}


def test_a_quick_world_gets_all_seeds():
    made = tournament.plan(four(), budget=120, one=1.0, cores=2)  # 2 s a seed, 110 s of room
    assert (made.seeds, made.until.seconds, made.shortened) == (5, 1000.0, 1.0)
    assert made.expected == pytest.approx(10 + 2 * 5)


def test_a_slow_one_gets_fewer_and_then_shorter_runs():
    fewer = tournament.plan(four(), budget=120, one=15.0, cores=2)  # 30 s a seed: three fit into 110
    assert (fewer.seeds, fewer.until.seconds) == (3, 1000.0)
    shorter = tournament.plan(four(), budget=120, one=100.0, cores=2)  # 200 s a seed: 110 of 600
    assert (shorter.seeds, shorter.until.seconds) == (3, 180.0)
    assert shorter.expected == pytest.approx(120)


def test_what_was_asked_for_stays():
    made = tournament.plan(four(), budget=10, seeds=7, fixed=True, one=100.0)
    assert (made.seeds, made.until.seconds, made.expected) == (7, 1000.0, None)
    assert tournament.plan(four(), budget=10, fixed=True, one=100.0, cores=2).until.seconds == 1000.0


def test_a_tournament_does_not_end_at_a_target():
    given = Experiment(until=Until(seconds=100, target=Target("acc", 0.9)))
    made = tournament.horizon(given)
    assert made.until == Until(seconds=100)
    assert made.target == Target("acc", 0.9)


def test_a_short_run_is_still_looked_at():
    made = tournament.ending(Experiment(evaluate_every=60.0), Until(seconds=100))
    assert made.evaluate_every is None
    assert tournament.ending(Experiment(evaluate_every=20.0), Until(seconds=100)).evaluate_every == 20.0
