"""Intervals, paired differences, censored times, ranks and quantiles, compared with numbers worked by hand."""

from __future__ import annotations

from math import erfc, exp, inf, isnan, nan, pi, sqrt, tan

import pytest

from offbeat.metrics.seed_statistics import (
    Interval,
    confidence_interval,
    paired_difference,
    rank_methods,
    restricted_mean,
    t_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "printed"),
    # the column for 95 % (two-sided) of any printed table
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_t_quantiles_match_the_printed_table(degrees, printed):
    assert t_quantile(degrees) == pytest.approx(printed, abs=5e-4)


def test_t_quantiles_of_one_and_two_degrees_match_the_closed_forms():
    # Cauchy: P(|T| <= t) = 2/π arctan t, so t = tan(0.95 π/2)
    assert t_quantile(1) == pytest.approx(tan(0.95 * pi / 2))
    # P(|T| <= t) = t / sqrt(2 + t²), so t = sqrt(2 · 0.9025 / (1 - 0.9025)) = sqrt(18.5128...) = 4.3027
    assert t_quantile(2) == pytest.approx(sqrt(2 * 0.9025 / 0.0975))
    # other levels: 99 % of 5 degrees of freedom is 4.032, 90 % of 4 is 2.132
    assert t_quantile(5, 0.99) == pytest.approx(4.032, abs=5e-4)
    assert t_quantile(4, 0.90) == pytest.approx(2.132, abs=5e-4)


def test_an_interval_is_the_mean_plus_or_minus_t_standard_errors():
    # mean 0.92, deviations -0.02, 0, 0.02: s = sqrt(0.0008 / 2) = 0.02, standard error 0.02 / sqrt(3) = 0.011547
    result = confidence_interval([0.90, 0.92, 0.94])
    assert result.mean == pytest.approx(0.92)
    assert result.half == pytest.approx(4.303 * 0.011547, abs=1e-5)  # 0.04969
    assert (result.low, result.high) == (pytest.approx(0.87031, abs=1e-5), pytest.approx(0.96969, abs=1e-5))
    assert result.seeds == 3


def test_one_seed_has_no_interval_and_no_seeds_have_no_mean():
    result = confidence_interval([0.9])
    assert (result.mean, result.seeds) == (0.9, 1)
    assert isnan(result.half)
    assert not result.excludes_zero
    assert isnan(confidence_interval([]).mean)


def test_values_that_are_not_finite_have_no_interval():
    assert isnan(confidence_interval([0.9, nan]).mean)
    assert isnan(confidence_interval([0.9, nan]).half)
    assert isnan(confidence_interval([0.9, inf]).half)
    # two methods, each of which broke down with another seed: inf - 1 and 1 - inf
    apart = paired_difference({0: inf, 1: 1.0}, {0: 1.0, 1: inf})
    assert isnan(apart.mean)
    assert isnan(apart.half)


def test_differences_are_paired_by_seed():
    # differences 0.02, 0.03, 0.04: mean 0.03, s = 0.01, half = 4.303 · 0.01 / sqrt(3) = 0.02484
    mine, theirs = {0: 0.92, 1: 0.83, 2: 0.74}, {2: 0.70, 1: 0.80, 0: 0.90}
    result = paired_difference(mine, theirs)
    assert result.mean == pytest.approx(0.03)
    assert result.half == pytest.approx(0.02484, abs=1e-5)
    assert result.excludes_zero  # although the two methods' own intervals overlap widely: 0.83 and 0.80 ± 0.2
    assert paired_difference(theirs, mine).mean == pytest.approx(-0.03)


def test_only_seeds_of_both_are_paired():
    result = paired_difference({0: 1.0, 1: 2.0, 5: 9.0}, {0: 0.5, 1: 1.0, 7: 9.0})  # 0.5 and 1.0
    assert (result.seeds, result.mean) == (2, 0.75)
    assert paired_difference({0: 1.0}, {1: 1.0}).seeds == 0


def test_a_constant_difference_excludes_zero_unless_it_is_zero():
    # bytes on a network do not depend on the seed: 5 less each time
    assert paired_difference({0: 10.0, 1: 10.0}, {0: 15.0, 1: 15.0}).excludes_zero
    assert not paired_difference({0: 10.0, 1: 10.0}, {0: 10.0, 1: 10.0}).excludes_zero


def test_zero_at_the_bound_is_not_excluded():
    assert not Interval(mean=1.0, half=1.0, seeds=3).excludes_zero
    assert Interval(mean=1.0, half=0.99, seeds=3).excludes_zero
    assert Interval(mean=-1.0, half=0.99, seeds=3).excludes_zero


def test_the_restricted_mean_is_the_mean_if_all_seeds_reached_the_target():
    assert restricted_mean([(300.0, 1000.0), (500.0, 1000.0), (400.0, 1000.0)]) == pytest.approx(400.0)


def test_a_seed_that_never_reached_the_target_counts_with_its_observed_time():
    # (300 + 500 + 1000) / 3, where a mean of the lucky two would be 400
    assert restricted_mean([(300.0, 1000.0), (None, 1000.0), (500.0, 1000.0)]) == pytest.approx(600.0)
    assert restricted_mean([(None, 1000.0), (None, 1000.0)]) == pytest.approx(1000.0)


def test_a_seed_observed_for_less_time_is_censored():
    # one is observed until 200 only; of the three at risk at 300 one reaches the target, of the two at 600 one:
    # S = 1 to 300, 2/3 to 600, 1/3 to 1000: 300 + 200 + 400/3 = 633.33. Its 200 s averaged in would make 525.
    times = [(None, 200.0), (300.0, 1000.0), (600.0, 1000.0), (None, 1000.0)]
    assert restricted_mean(times) == pytest.approx(300 + 300 * 2 / 3 + 400 / 3)


def test_equal_times_are_counted_together_and_a_seed_censored_then_is_still_at_risk():
    # at 400 all three are at risk, two reach the target, the third is censored: S = 1 to 400, unknown beyond
    assert restricted_mean([(400.0, 900.0), (400.0, 900.0), (None, 400.0)]) == pytest.approx(400.0)


def test_no_seeds_have_no_time():
    assert isnan(restricted_mean([]))


def test_ranks_are_averaged_over_settings():
    #          a     b     c          ranks
    settings = {
        "one": ({"a": 0.9, "b": 0.8, "c": 0.7}, True),  # 1, 2, 3
        "two": ({"a": 0.9, "b": 0.9, "c": 0.5}, True),  # 1.5, 1.5, 3
        "three": ({"a": 2.0, "b": 1.0, "c": 3.0}, False),  # 2, 1, 3: lower is better
    }
    result = rank_methods(settings)
    assert result.ranks == {"one": [1, 2, 3], "two": [1.5, 1.5, 3], "three": [2, 1, 3]}
    a, b, c = result.methods
    assert (a.name, a.mean, a.wins, a.ties) == ("a", 1.5, 1, 1)
    assert (b.name, b.mean, b.wins, b.ties) == ("b", 1.5, 1, 1)
    assert (c.name, c.mean, c.wins, c.ties) == ("c", 3.0, 0, 0)
    # Friedman: 12·3 / (3·4) · (1.5² + 1.5² + 3² - 3·4²/4) = 3 · 1.5 = 4.5; one pair tied: 1 - (2³ - 2)/(3·(3³ - 3)) =
    # 1 - 6/72 = 11/12; 4.5 / (11/12) = 4.909; of 2 degrees of freedom P = exp(-4.909 / 2) = 0.0859
    assert result.friedman == pytest.approx(54 / 11)
    assert result.p == pytest.approx(0.0859, abs=1e-4)


def test_only_methods_that_every_setting_has_are_ranked():
    result = rank_methods({"one": ({"a": 1.0, "b": 2.0, "c": 9.0}, True), "two": ({"b": 1.0, "a": 2.0}, True)})
    assert [m.name for m in result.methods] == ["a", "b"]
    assert result.left_out == ("c",)
    assert isnan(result.p)  # two methods, two settings: too few to test


def test_a_diverged_method_comes_last():
    result = rank_methods(
        {"one": ({"a": nan, "b": 0.1, "c": 0.2}, True), "two": ({"a": nan, "b": nan, "c": 0.1}, True)}
    )
    assert result.ranks == {"one": [3, 2, 1], "two": [2.5, 2.5, 1]}


def test_methods_that_are_all_equal_are_not_tested():
    result = rank_methods({name: ({"a": 1.0, "b": 1.0, "c": 1.0}, True) for name in ("one", "two", "three")})
    assert [m.mean for m in result.methods] == [2.0, 2.0, 2.0]
    assert [(m.wins, m.ties) for m in result.methods] == [(0, 3)] * 3
    assert isnan(result.p)


def test_the_friedman_test_of_an_odd_number_of_degrees():
    ranks = rank_methods({setting: ({"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}, True) for setting in "xyz"})
    # 12·3 / (4·5) · (1² + 2² + 3² + 4² - 4·5²/4) = 1.8 · 5 = 9, of 3 degrees of freedom
    assert ranks.friedman == pytest.approx(9)
    # P(X > x) of 3 degrees is erfc(√(x/2)) + √(2x/π) exp(-x/2)
    assert ranks.p == pytest.approx(erfc(sqrt(4.5)) + sqrt(18 / pi) * exp(-4.5))
