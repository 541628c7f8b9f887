"""The verdicts reproduced, partly, not and not comparable; all numbers are worked by hand."""

from __future__ import annotations

import pytest
from paper_examples import ACCURACY, printed_values, relative_time

from offbeat.papers.entries import Entry, PrintedValue, Quantity
from offbeat.papers.verdict import judge_entry, paper_orders, value_in_widened_interval


def entry(printed, winner="ours", quantity=ACCURACY, order=(), variants=()):
    return Entry(
        where="Table 1",
        claim="ours is best",
        quantity=quantity,
        preset="x/y",
        printed=printed_values(printed),
        winner=winner,
        stated_orders=order,
        variants=variants,
    )


def seeds(*values):
    return dict(enumerate(values))


TWO = entry({"ours": (90.0, 1.0), "other": (80.0, 1.0)})


def test_overlapping_spreads_distinguish_no_methods():
    # √(3² + 4²) = 5: a lead of 5 is within the spreads, one of 5.1 is not
    assert paper_orders(entry({"ours": (15.0, 3.0), "other": (10.0, 4.0)})) == []
    assert paper_orders(entry({"ours": (15.1, 3.0), "other": (10.0, 4.0)})) == [("ours", "other")]


def test_our_spreads_count_if_the_paper_prints_none():
    # deviations of 3 (7, 10, 13) and 4 (6, 10, 14): √(3² + 4²) = 5
    here = {"ours": seeds(7.0, 10.0, 13.0), "other": seeds(6.0, 10.0, 14.0)}
    assert paper_orders(entry({"ours": 15.0, "other": 10.0}), here) == []
    assert paper_orders(entry({"ours": 15.1, "other": 10.0}), here) == [("ours", "other")]
    elsewhere = Quantity("final", "in another unit", "more", same_unit=False)
    assert paper_orders(entry({"ours": 15.0, "other": 10.0}, quantity=elsewhere), here) == [("ours", "other")]


def test_a_shorter_time_is_better_and_a_target_not_reached_is_worst():
    times = entry({"ours": 1.0, "slow": 2.0, "never": float("inf")}, quantity=relative_time("90 %", "ours"))
    assert paper_orders(times) == [("ours", "slow"), ("ours", "never"), ("slow", "never")]


def test_orders_stated_in_the_text_count_without_numbers():
    assert paper_orders(entry({}, order=(("ours", "other"),))) == [("ours", "other")]


def test_a_value_lies_in_the_interval_widened_by_the_papers_spread():
    # 1 and 3: mean 2, s = √2, t of one degree = 12.706, half = 12.706 · √2 / √2 = 12.706
    assert value_in_widened_interval(PrintedValue(14.7), seeds(1.0, 3.0))
    assert not value_in_widened_interval(PrintedValue(14.8), seeds(1.0, 3.0))
    assert value_in_widened_interval(PrintedValue(14.8, 0.2), seeds(1.0, 3.0))
    assert not value_in_widened_interval(PrintedValue(1.0), seeds(1.0))  # one seed has no interval


def around(value):
    """Return three seeds, 0.5 apart."""
    return seeds(value - 0.5, value, value + 0.5)


def test_the_same_order_margin_and_value_are_a_reproduction():
    # the lead is 10 in every seed: its interval is [10, 10]; 90 lies in the middle of ours
    judgement = judge_entry(TWO, {"ours": around(90.0), "other": around(80.0)})
    assert judgement.verdict == "reproduced"
    assert [pair.status for pair in judgement.orders] == ["holds"]
    assert judgement.value_in_interval == {"ours": True, "other": True}


def test_half_of_the_margin_is_enough_and_less_is_not():
    assert judge_entry(TWO, {"ours": around(90.0), "other": around(85.0)}).verdict == "reproduced"
    judgement = judge_entry(TWO, {"ours": around(90.0), "other": around(85.1)})
    assert judgement.verdict == "partly"
    assert "ours ranks 1 of 2 by our means: +4.90 to the best other method, +10.00 in the paper" in judgement.reasons


def test_no_margin_is_required_to_methods_that_did_not_reach_the_target():
    times = entry({"ours": 1.0, "never": float("inf")}, quantity=relative_time("90 %", "ours"))
    assert judge_entry(times, {"ours": seeds(1.0, 1.0, 1.0), "never": seeds(2.0, 2.0, 2.0)}).verdict == "reproduced"


def test_the_same_order_at_another_level_is_partly_reproduced():
    # 60 ± 4.303 · 0.5 / √3 = 60 ± 1.24, and the paper's 90 ± 1 is far off
    judgement = judge_entry(TWO, {"ours": around(60.0), "other": around(50.0)})
    assert judgement.verdict == "partly"
    assert judgement.value_in_interval == {"ours": False, "other": False}


def test_in_another_unit_only_orders_are_compared():
    errors = Quantity("final", "in another unit", "less", same_unit=False)
    judgement = judge_entry(
        entry({"ours": 9.0, "other": 10.0}, quantity=errors), {"ours": around(1.0), "other": around(1.1)}
    )
    assert (judgement.verdict, judgement.value_in_interval) == ("reproduced", {})


def test_a_lead_within_chance_is_open():
    # leads of 1, 10 and 19: mean 10, s = 9, half 4.303 · 9 / √3 = 22.4
    judgement = judge_entry(TWO, {"ours": seeds(90.0, 90.0, 90.0), "other": seeds(89.0, 80.0, 71.0)})
    assert ([pair.status for pair in judgement.orders], judgement.verdict) == (["open"], "partly")


def test_the_reverse_order_is_not_reproduced():
    judgement = judge_entry(TWO, {"ours": around(80.0), "other": around(90.0)})
    assert judgement.verdict == "not"
    assert judgement.reasons[0] == "1 order: 1 contradicted (other beats ours)"


def test_with_many_orders_a_reversed_one_may_be_chance():
    """Leads of -1, -2 and -3: mean -2, s = 1, half 4.303 / √3 = 2.48: open. Of -1.5, -2 and -2.5: s = 0.5, half 1.24:
    against the paper on its own. For ten orders t of two degrees is 14.09, at 99.5 %: half 4.07, and it is open.
    """
    ten = {f"m{i}": (float(i), 0.0) for i in range(5)}  # 5 · 4 / 2 orders
    level = seeds(10.0, 10.0, 10.0)
    two = entry({"a": (1.0, 0.0), "b": (0.0, 0.0)}, winner=None)
    less = seeds(8.5, 8.0, 7.5)
    assert judge_entry(two, {"a": seeds(9.0, 8.0, 7.0), "b": level}).orders[0].status == "open"
    assert judge_entry(two, {"a": less, "b": level}).orders[0].status == "contradicted"
    among = judge_entry(entry(ten, winner=None), {**dict.fromkeys(ten, level), "m4": less})
    assert len(among.orders) == 10
    assert not any(pair.status == "contradicted" for pair in among.orders)


def test_one_contradiction_among_others_is_partly():
    three = entry({"ours": (90.0, 0.0), "b": (80.0, 0.0), "c": (70.0, 0.0)})
    # ours before b and c hold, b before c is contradicted
    judgement = judge_entry(three, {"ours": around(90.0), "b": around(70.0), "c": around(80.0)})
    assert [pair.status for pair in judgement.orders] == ["holds", "holds", "contradicted"]
    assert judgement.verdict == "partly"


def test_orders_of_others_do_not_reproduce_a_claim():
    """Of six orders four hold, but of the three of the claim's method one: leads of 1, 10 and 19 over b are open."""
    four = entry({"ours": (90.0, 40.0), "b": (40.0, 1.0), "c": (30.0, 1.0), "d": (20.0, 1.0)}, order=())
    here = {"ours": seeds(41.0, 50.0, 59.0), "b": around(40.0), "c": around(39.0), "d": around(20.0)}
    judgement = judge_entry(four, here)
    assert [pair.status for pair in judgement.orders if pair.better == "ours"] == ["open", "open", "holds"]
    assert sum(pair.status == "holds" for pair in judgement.orders) == 4
    assert judgement.verdict == "partly"


def test_variants_of_the_winner_are_no_competitors():
    with_variant = entry({"ours": (90.0, 1.0), "ours+M": (95.0, 1.0), "other": (80.0, 1.0)}, variants=("ours+M",))
    judgement = judge_entry(with_variant, {"ours": around(90.0), "ours+M": around(95.0), "other": around(80.0)})
    assert judgement.verdict == "reproduced"
    assert "ours ranks 1 of 2 by our means: +10.00 to the best other method, +10.00 in the paper" in judgement.reasons


def test_a_stated_order_can_be_reproduced():
    stated = entry({}, order=(("ours", "other"),))
    assert judge_entry(stated, {"ours": seeds(2.0, 3.0, 4.0), "other": seeds(1.0, 2.0, 3.0)}).verdict == "reproduced"


def test_without_a_winner_all_stated_orders_must_hold():
    stated = entry({}, winner=None, order=(("a", "z"), ("b", "z"), ("c", "z")))
    there = {"a": around(2.0), "b": around(2.0), "z": around(1.0)}
    assert judge_entry(stated, {**there, "c": around(2.0)}).verdict == "reproduced"
    assert judge_entry(stated, {**there, "c": seeds(3.0, 1.0, 0.5)}).verdict == "partly"


@pytest.mark.parametrize(("first", "verdict"), [(80.0, "reproduced"), (99.0, "partly")])
def test_values_decide_if_no_methods_are_distinguished(first, verdict):
    alike = entry({"ours": first, "other": 80.0}, winner=None)
    alike = Entry(**{**vars(alike), "printed": printed_values({"ours": (first, 20.0), "other": (80.0, 20.0)})})
    # widened by 20 the second is inside; the first, at 50, is 30 or 49 away from it
    level = seeds(80.0, 80.0, 80.0)
    ours = {"ours": seeds(50.0, 50.0, 50.0) if verdict == "partly" else level, "other": level}
    assert judge_entry(alike, ours).verdict == verdict


@pytest.mark.parametrize(
    ("ours", "how", "why"),
    [
        (
            {"ours": seeds(1, 2, 3), "other": seeds(1, 2, 3)},
            {"other_data": "STAND-IN"},
            "the data differs from the paper's: STAND-IN",
        ),
        (
            {"ours": seeds(1, 2, 3), "other": seeds(1, 2, 3)},
            {"paper_size": False},
            "the runs are smaller or shorter than the paper's",
        ),
        ({"ours": seeds(1, 2, 3), "other": seeds(1, 2)}, {}, "fewer than 3 seeds"),
        ({}, {}, "no run has a value"),
        ({"ours": seeds(1, 2, 3)}, {}, "not run, or without a value: other"),
        ({"ours": seeds(1, 2, 3), "other": {3: 1, 4: 1, 5: 1}}, {}, "ours and other have no seed in common"),
        (
            {"ours": seeds(1, 2, 3), "other": seeds(1, 2, 3)},
            {"slowest_missing": True},
            "runs are missing, and the available ones are the fastest",
        ),
    ],
)
def test_obstacles_to_a_comparison_are_reported(ours, how, why):
    judgement = judge_entry(TWO, ours, **how)
    assert judgement.verdict == "not comparable"
    assert why in judgement.reasons[0]


def test_methods_that_the_paper_does_not_have_may_lack_seeds():
    judgement = judge_entry(TWO, {"ours": around(90.0), "other": around(80.0), "variant": seeds(90.0)})
    assert judgement.verdict == "reproduced"


def test_orders_without_a_common_seed_are_not_testable():
    judgement = judge_entry(TWO, {"ours": seeds(1, 2)}, other_data="STAND-IN for mnist")
    assert judgement.reasons[1] == "1 order: 1 not testable"


def test_a_bound_is_not_a_value():
    """ours did not get there in one seed: its mean is larger than 1, and whether the paper's 1 is its is not known."""
    times = entry({"ours": 1.0, "slow": 3.0}, quantity=relative_time("90 %", "ours"))
    ours = {"ours": seeds(0.9, 1.0, 1.1), "slow": seeds(2.9, 3.0, 3.1)}
    assert judge_entry(times, ours).verdict == "reproduced"
    judgement = judge_entry(times, ours, bounds={"ours"})
    assert (judgement.verdict, dict(judgement.value_in_interval)) == ("partly", {"slow": True})
    assert "ours did not reach the target in every seed, so its value is unknown" in judgement.reasons


def test_without_a_published_value_nothing_is_reproduced():
    never = entry({"ours": float("inf"), "other": float("inf")}, winner=None, quantity=relative_time("90 %", "ours"))
    judgement = judge_entry(never, {"ours": seeds(1, 2, 3), "other": seeds(1, 2, 3)})
    assert (judgement.verdict, judgement.reasons) == ("not comparable", ("the paper prints no value to compare with",))
