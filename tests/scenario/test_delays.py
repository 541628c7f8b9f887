"""Times are functions of (seed, client, n-th job)."""

from __future__ import annotations

from math import exp, log, pi, sqrt
from statistics import NormalDist, fmean, pstdev

import pytest

from offbeat.core import draws
from offbeat.scenario.delays import (
    MIN_JITTER_FACTOR,
    Changing,
    ConstantDelays,
    Delays,
    Devices,
    ExponentialDelays,
    Groups,
    HalfNormal,
    Lognormal,
    LongTail,
    Normal,
    PerClient,
    Uniform,
)

LAWS: list[Delays] = [
    ConstantDelays(mean=7.0),
    Uniform(low=10.0, high=500.0),
    Lognormal(median=60.0, sigma=1.0),
    ExponentialDelays(mean=60.0),
    PerClient(means=(5.0, 6.0, 60.0)),
    Normal(mean=0.15),
    HalfNormal(mean=60.0),
    LongTail(low=10.0, high=500.0),
    Groups(period=10.0),
    Devices(stds=(1.0,) * 9),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_times_do_not_depend_on_the_order_of_queries(law: Delays) -> None:
    keys = [(seed, client, index) for seed in (1, 2) for client in range(3) for index in range(3)]
    times = {key: law.seconds(*key, steps=4) for key in keys}
    assert {key: law.seconds(*key, steps=4) for key in reversed(keys)} == times
    assert len(set(times.values())) == len(keys)


U = draws.uniform(5, "speed", 3)  # of client 3 with seed 5
Z = NormalDist().inv_cdf(U)
QUANTILES: list[tuple[Delays, float]] = [
    (Uniform(low=10.0, high=20.0), 10 + 10 * U),
    (Lognormal(median=8.0, sigma=0.5), 8 * exp(0.5 * Z)),
    (ExponentialDelays(mean=4.0), -4 * log(1 - U)),
    (ConstantDelays(mean=4.0), 4),
    (PerClient(means=(1.0, 2.0, 3.0, 4.0)), 4),
    (Normal(mean=4.0, spread=0.3), 4 * (1 + 0.3 * Z)),
    # F(x) = 2 Phi(x / s) - 1 with s = mean sqrt(pi / 2)
    (HalfNormal(mean=4.0), 4 * sqrt(pi / 2) * NormalDist().inv_cdf((1 + U) / 2)),
    (LongTail(low=10.0, high=500.0, a=1.0), 10 / (1 - 0.98 * U)),  # F(x) = (1 - 10 / x) / (1 - 10 / 500) for a = 1
]


def test_means_are_the_quantiles_of_the_clients_draw() -> None:
    for law, quantile in QUANTILES:
        assert law.mean_of(5, 3) == pytest.approx(quantile, rel=1e-12), law


def test_a_normal_client_is_never_faster_than_a_twentieth_of_the_mean() -> None:
    # with a spread of 3 the share of 1 + 3z below 0.05 is Phi(-0.317) = 38 %
    assert min(Normal(mean=2.0, spread=3.0).mean_of(0, client) for client in range(50)) == 2 * MIN_JITTER_FACTOR


def test_half_of_a_long_tail_lies_below_twice_its_start() -> None:
    # the median of a = 1 on 10..500 is 10 / (1 - 0.98 / 2) = 19.6; of 1000 clients the median errs by about 1
    means = sorted(LongTail(low=10.0, high=500.0).mean_of(0, client) for client in range(1000))
    assert means[500] == pytest.approx(19.6, abs=4)
    assert 10 < means[0] <= means[-1] <= 500


def test_a_lognormal_law_has_the_mean_and_deviation_asked_for() -> None:
    law = Lognormal(mean=300.0, std=300.0)
    # sigma^2 = ln(1 + 1), median = 300 exp(-ln 2 / 2)
    assert (law.sigma, law.median) == pytest.approx((sqrt(log(2)), 300 / sqrt(2)))
    assert exp(log(law.median) + law.sigma**2 / 2) == pytest.approx(300)


def test_response_groups_keep_their_shares_exactly() -> None:
    for level, shares, counts in (("L1", (0.6, 0.2, 0.2), [30, 10, 10]), ("L2", (0.4, 0.3, 0.3), [20, 15, 15])):
        for seed in range(3):
            means = [Groups(period=2.0, shares=shares).mean_of(seed, client) for client in range(50)]
            assert [means.count(2.0), means.count(6.0), means.count(10.0)] == counts, level
    assert [Groups().mean_of(0, c) for c in range(50)] != [Groups().mean_of(1, c) for c in range(50)]


def test_a_device_takes_what_was_measured_and_never_nothing() -> None:
    law = Devices(means=(96.213,), stds=(135.583,), scale=2.0)
    jobs = [law.seconds(0, 0, index, steps=1) for index in range(4000)]
    for index in range(50):
        drawn = 96.213 + 135.583 * draws.normal(0, "jitter", 0, index)
        assert jobs[index] == pytest.approx(2 * (drawn if drawn > 0 else 96.213))
    # 24 % of the draws are not positive and count as the mean: E = m + s phi(m / s), not m
    expected = 2 * (96.213 + 135.583 * exp(-((96.213 / 135.583) ** 2) / 2) / sqrt(2 * pi))
    assert law.expected(0, 0, steps=1) == pytest.approx(expected)
    assert fmean(jobs) == pytest.approx(expected, abs=4 * 2 * 135.583 / sqrt(4000))


def test_devices_are_drawn_with_replacement_anew_for_every_seed() -> None:
    law = Devices()
    mine = [[law.device_of(seed, client) for client in range(200)] for seed in (0, 1)]
    assert set(mine[0]) == set(mine[1]) == set(range(9))
    assert mine[0] != mine[1]


def test_all_devices_together_have_a_mean_and_percentiles() -> None:
    law = Devices()
    assert law.pooled()[0] == pytest.approx(2617.821 / 9)  # the sum of the nine means
    # law of total variance for two devices: mean of 1 and 9, plus (10 - 20)^2
    assert Devices(means=(10.0, 30.0), stds=(1.0, 3.0)).pooled() == pytest.approx((20.0, sqrt(5 + 100)))
    jobs = sorted(law.seconds(0, client, index, steps=1) for client in range(200) for index in range(10))
    for share in (0.05, 0.5, 0.95):
        bound = law.percentile(share)
        below = sum(job <= bound for job in jobs) / len(jobs)
        assert below == pytest.approx(share, abs=0.06)  # 200 clients are an uneven sample of nine devices
    assert Devices(means=(10.0,), stds=(0.0,)).percentile(0.05) == pytest.approx(10)


def test_a_sudden_slow_down_is_felt_by_the_job_under_way() -> None:
    law = Changing(delays=ConstantDelays(mean=10.0, jitter=0.0), at=(15.0, 100.0), factors=(2.0, 0.5))
    # 5 s at the old pace do half of it, the rest takes twice as long
    assert law.elapsed(0, 0, started=10.0, seconds=10.0) == 5 + 2 * 5
    assert law.elapsed(0, 0, started=0.0, seconds=10.0) == 10
    assert law.elapsed(0, 0, started=20.0, seconds=10.0) == 20
    # 10 s at 2 do 5, then the last 5 at half
    assert law.elapsed(0, 0, started=90.0, seconds=10.0) == 10 + 2.5
    assert [law.pace(0, 0, t) for t in (0.0, 14.9, 15.0, 99.0, 100.0)] == [1, 1, 2, 2, 0.5]


def test_a_share_of_the_clients_slows_down() -> None:
    law = Changing(delays=ConstantDelays(), at=(0.0,), factors=(5.0,), share=0.3)
    assert sorted(law.pace(0, client, 1.0) for client in range(10)) == [1] * 7 + [5] * 3


def test_the_same_client_is_slow_under_every_law() -> None:
    def ranking(law: Delays) -> list[int]:
        return sorted(range(50), key=lambda client: law.mean_of(9, client))

    assert ranking(LAWS[1]) == ranking(LAWS[2]) == ranking(LAWS[3])


def test_clients_are_distributed_as_named() -> None:
    # 4000 clients; the tolerances are about four standard errors
    def means(law: Delays) -> list[float]:
        return sorted(law.mean_of(1, client) for client in range(4000))

    uniform = means(Uniform(low=10.0, high=30.0))
    assert 10 < uniform[0] <= uniform[-1] < 30
    assert fmean(uniform) == pytest.approx(20, abs=4 * (20 / 12**0.5) / 4000**0.5)
    logs = [log(m) for m in means(Lognormal(median=60.0, sigma=0.5))]
    assert fmean(logs) == pytest.approx(log(60), abs=4 * 0.5 / 4000**0.5)
    assert pstdev(logs) == pytest.approx(0.5, abs=4 * 0.5 / 8000**0.5)
    assert fmean(means(ExponentialDelays(mean=3.0))) == pytest.approx(3, abs=4 * 3 / 4000**0.5)


def test_jobs_vary_by_the_jitter_around_the_clients_mean() -> None:
    law = Uniform(low=5.0, high=50.0, jitter=0.05)
    mean = law.mean_of(1, 0)
    times = [law.seconds(1, 0, index, steps=1) / mean for index in range(4000)]
    assert fmean(times) == pytest.approx(1, abs=4 * 0.05 / 4000**0.5)
    assert pstdev(times) == pytest.approx(0.05, abs=4 * 0.05 / 8000**0.5)


def test_a_job_never_takes_less_than_a_twentieth_of_the_mean() -> None:
    law = ConstantDelays(mean=10.0, jitter=1.0)
    times = [law.seconds(1, 0, index, steps=1) for index in range(200)]
    # P(1 + z < 0.05) = 17 %
    assert min(times) == 10 * MIN_JITTER_FACTOR == 0.5


def test_without_jitter_every_job_takes_what_is_expected() -> None:
    law = Lognormal(median=3.0, sigma=1.0, jitter=0.0)
    assert law.seconds(1, 2, 3, steps=9) == law.expected(1, 2, steps=9) == law.mean_of(1, 2)


def test_times_per_step_grow_with_the_steps() -> None:
    assert ConstantDelays(mean=2.0, jitter=0.0, unit="step").seconds(1, 0, 0, steps=9) == 18
    assert ConstantDelays(mean=2.0, jitter=0.0, unit="job").seconds(1, 0, 0, steps=9) == 2


def test_mean_times_are_at_least_the_least() -> None:
    for law in (ExponentialDelays, HalfNormal):
        free, bound = ([law(mean=3.0, least=least).mean_of(1, client) for client in range(200)] for least in (0.0, 0.3))
        assert min(free) < 0.3 == min(bound)
        assert [max(m, 0.3) for m in free] == bound
