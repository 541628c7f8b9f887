"""The rule by which a page says reproduced, partly, not or not comparable; all numbers are worked by hand."""

from __future__ import annotations

import pytest
from little_papers import ACCURACY, cells, relative_time

from offbeat.papers.entries import Entry, PrintedValue, Quantity
from offbeat.papers.verdict import judge_entry, paper_orders, value_in_widened_interval


def entry(printed, winner="ours", quantity=ACCURACY, order=(), kin=()):
    return Entry(
        where="Table 1",
        claim="ours is best",
        quantity=quantity,
        preset="x/y",
        printed=cells(printed),
        winner=winner,
        stated_orders=order,
        variants=kin,
    )


def seeds(*values):
    return dict(enumerate(values))


TWO = entry({"ours": (90.0, 1.0), "other": (80.0, 1.0)})


def test_spreads_that_overlap_tell_no_methods_apart():
    # √(3² + 4²) = 5: a lead of 5 is within the spreads, one of 5.1 is not
    assert paper_orders(entry({"ours": (15.0, 3.0), "other": (10.0, 4.0)})) == []
    assert paper_orders(entry({"ours": (15.1, 3.0), "other": (10.0, 4.0)})) == [("ours", "other")]


def test_where_the_paper_prints_no_spreads_ours_count():
    # deviations of 3 (7, 10, 13) and 4 (6, 10, 14): √(3² + 4²) = 5
    here = {"ours": seeds(7.0, 10.0, 13.0), "other": seeds(6.0, 10.0, 14.0)}
    assert paper_orders(entry({"ours": 15.0, "other": 10.0}), here) == []
    assert paper_orders(entry({"ours": 15.1, "other": 10.0}), here) == [("ours", "other")]
    elsewhere = Quantity("final", "in another unit", "more", same_unit=False)
    assert paper_orders(entry({"ours": 15.0, "other": 10.0}, quantity=elsewhere), here) == [("ours", "other")]


def test_of_times_less_is_better_and_who_never_arrived_comes_after_all():
    times = entry({"ours": 1.0, "slow": 2.0, "never": float("inf")}, quantity=relative_time("90 %", "ours"))
    assert paper_orders(times) == [("ours", "slow"), ("ours", "never"), ("slow", "never")]


def test_what_the_text_says_counts_where_there_are_no_numbers():
    assert paper_orders(entry({}, order=(("ours", "other"),))) == [("ours", "other")]


def test_a_value_lies_in_the_interval_widened_by_the_papers_spread():
    # 1 and 3: mean 2, s = √2, t of one degree = 12.706, half = 12.706 · √2 / √2 = 12.706
    assert value_in_widened_interval(PrintedValue(14.7), seeds(1.0, 3.0))
    assert not value_in_widened_interval(PrintedValue(14.8), seeds(1.0, 3.0))
    assert value_in_widened_interval(PrintedValue(14.8, 0.2), seeds(1.0, 3.0))
    assert not value_in_widened_interval(PrintedValue(1.0), seeds(1.0))  # one seed has no interval


def around(value):
    """Three seeds, a half apart."""
    return seeds(value - 0.5, value, value + 0.5)


def test_the_same_order_margin_and_value_are_a_reproduction():
    # the lead is 10 in every seed: its interval is [10, 10]; 90 lies in the middle of ours
    found = judge_entry(TWO, {"ours": around(90.0), "other": around(80.0)})
    assert found.verdict == "reproduced"
    assert [pair.status for pair in found.orders] == ["holds"]
    assert found.value_in_interval == {"ours": True, "other": True}


def test_half_of_the_margin_is_enough_and_less_is_not():
    assert judge_entry(TWO, {"ours": around(90.0), "other": around(85.0)}).verdict == "reproduced"
    found = judge_entry(TWO, {"ours": around(90.0), "other": around(85.1)})
    assert found.verdict == "partly"
    assert "ours is number 1 of 2 in our means: +4.90 to the best other, +10.00 in the paper" in found.reasons


def test_a_margin_to_nobody_who_got_there_is_not_asked_for():
    times = entry({"ours": 1.0, "never": float("inf")}, quantity=relative_time("90 %", "ours"))
    assert judge_entry(times, {"ours": seeds(1.0, 1.0, 1.0), "never": seeds(2.0, 2.0, 2.0)}).verdict == "reproduced"


def test_another_level_is_only_partly_the_same():
    # 60 ± 4.303 · 0.5 / √3 = 60 ± 1.24, and the paper's 90 ± 1 is far off
    found = judge_entry(TWO, {"ours": around(60.0), "other": around(50.0)})
    assert found.verdict == "partly"
    assert found.value_in_interval == {"ours": False, "other": False}


def test_in_another_unit_orders_are_looked_at_and_values_are_not():
    errors = Quantity("final", "in another unit", "less", same_unit=False)
    found = judge_entry(
        entry({"ours": 9.0, "other": 10.0}, quantity=errors), {"ours": around(1.0), "other": around(1.1)}
    )
    assert (found.verdict, found.value_in_interval) == ("reproduced", {})


def test_a_lead_that_may_be_chance_is_open():
    # leads of 1, 10 and 19: mean 10, s = 9, half 4.303 · 9 / √3 = 22.4
    found = judge_entry(TWO, {"ours": seeds(90.0, 90.0, 90.0), "other": seeds(89.0, 80.0, 71.0)})
    assert ([pair.status for pair in found.orders], found.verdict) == (["open"], "partly")


def test_the_other_way_round_is_not_reproduced():
    found = judge_entry(TWO, {"ours": around(80.0), "other": around(90.0)})
    assert found.verdict == "not"
    assert found.reasons[0] == "of 1 order 1 is contradicted (other beats ours)"


def test_among_many_orders_one_may_be_the_other_way_by_chance():
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
    found = judge_entry(three, {"ours": around(90.0), "b": around(70.0), "c": around(80.0)})
    assert [pair.status for pair in found.orders] == ["holds", "holds", "contradicted"]
    assert found.verdict == "partly"


def test_orders_of_others_do_not_reproduce_a_claim():
    """Of six orders four hold, but of the three of the claim's method one: leads of 1, 10 and 19 over b are open."""
    four = entry({"ours": (90.0, 40.0), "b": (40.0, 1.0), "c": (30.0, 1.0), "d": (20.0, 1.0)}, order=())
    here = {"ours": seeds(41.0, 50.0, 59.0), "b": around(40.0), "c": around(39.0), "d": around(20.0)}
    found = judge_entry(four, here)
    assert [pair.status for pair in found.orders if pair.better == "ours"] == ["open", "open", "holds"]
    assert sum(pair.status == "holds" for pair in found.orders) == 4
    assert found.verdict == "partly"


def test_own_variants_are_no_rivals():
    own = entry({"ours": (90.0, 1.0), "ours+M": (95.0, 1.0), "other": (80.0, 1.0)}, kin=("ours+M",))
    found = judge_entry(own, {"ours": around(90.0), "ours+M": around(95.0), "other": around(80.0)})
    assert found.verdict == "reproduced"
    assert "ours is number 1 of 2 in our means: +10.00 to the best other, +10.00 in the paper" in found.reasons


def test_an_order_in_words_can_be_reproduced():
    said = entry({}, order=(("ours", "other"),))
    assert judge_entry(said, {"ours": seeds(2.0, 3.0, 4.0), "other": seeds(1.0, 2.0, 3.0)}).verdict == "reproduced"


def test_what_is_said_of_every_one_must_hold_of_every_one():
    said = entry({}, winner=None, order=(("a", "z"), ("b", "z"), ("c", "z")))
    there = {"a": around(2.0), "b": around(2.0), "z": around(1.0)}
    assert judge_entry(said, {**there, "c": around(2.0)}).verdict == "reproduced"
    assert judge_entry(said, {**there, "c": seeds(3.0, 1.0, 0.5)}).verdict == "partly"


@pytest.mark.parametrize(("first", "verdict"), [(80.0, "reproduced"), (99.0, "partly")])
def test_where_nothing_is_told_apart_values_decide(first, verdict):
    alike = entry({"ours": first, "other": 80.0}, winner=None)
    alike = Entry(**{**vars(alike), "printed": cells({"ours": (first, 20.0), "other": (80.0, 20.0)})})
    # widened by 20 the second is inside; the first, at 50, is 30 or 49 away from it
    level = seeds(80.0, 80.0, 80.0)
    ours = {"ours": seeds(50.0, 50.0, 50.0) if verdict == "partly" else level, "other": level}
    assert judge_entry(alike, ours).verdict == verdict


@pytest.mark.parametrize(
    ("ours", "how", "why"),
    [
        ({"ours": seeds(1, 2, 3), "other": seeds(1, 2, 3)}, {"other_data": "STAND-IN"}, "not the paper's: STAND-IN"),
        (
            {"ours": seeds(1, 2, 3), "other": seeds(1, 2, 3)},
            {"paper_size": False},
            "not of the paper's size and length",
        ),
        ({"ours": seeds(1, 2, 3), "other": seeds(1, 2)}, {}, "fewer than 3 seeds"),
        ({}, {}, "no run has a value"),
        ({"ours": seeds(1, 2, 3)}, {}, "not run, or without a value: other"),
        ({"ours": seeds(1, 2, 3), "other": {3: 1, 4: 1, 5: 1}}, {}, "no seed is shared by ours and other"),
        (
            {"ours": seeds(1, 2, 3), "other": seeds(1, 2, 3)},
            {"slowest_missing": True},
            "runs are missing, and those that are there are the quickest",
        ),
    ],
)
def test_what_cannot_be_compared_is_not(ours, how, why):
    found = judge_entry(TWO, ours, **how)
    assert found.verdict == "not comparable"
    assert why in found.reasons[0]


def test_a_row_that_the_paper_does_not_have_may_lack_seeds():
    found = judge_entry(TWO, {"ours": around(90.0), "other": around(80.0), "variant": seeds(90.0)})
    assert found.verdict == "reproduced"


def test_orders_without_a_seed_in_common_cannot_be_looked_at():
    found = judge_entry(TWO, {"ours": seeds(1, 2)}, other_data="STAND-IN for mnist")
    assert found.reasons[1] == "of 1 order 1 cannot be looked at"


def test_a_bound_is_no_value():
    """ours did not get there in one seed: its mean is larger than 1, and whether the paper's 1 is its is not known."""
    times = entry({"ours": 1.0, "slow": 3.0}, quantity=relative_time("90 %", "ours"))
    ours = {"ours": seeds(0.9, 1.0, 1.1), "slow": seeds(2.9, 3.0, 3.1)}
    assert judge_entry(times, ours).verdict == "reproduced"
    found = judge_entry(times, ours, bounds={"ours"})
    assert (found.verdict, dict(found.value_in_interval)) == ("partly", {"slow": True})
    assert "ours did not get there in every seed: its value is not known" in found.reasons


def test_where_there_is_nothing_to_look_for_nothing_is_reproduced():
    never = entry({"ours": float("inf"), "other": float("inf")}, winner=None, quantity=relative_time("90 %", "ours"))
    found = judge_entry(never, {"ours": seeds(1, 2, 3), "other": seeds(1, 2, 3)})
    assert (found.verdict, found.reasons) == ("not comparable", ("there is no value of the paper to look for",))
