"""Times are functions of (seed, client, n-th job)."""

from __future__ import annotations

from math import exp, log
from statistics import NormalDist, fmean, pstdev

import pytest

from offbeat.core import draws
from offbeat.core.errors import ConfigError
from offbeat.scenario.delays import DELAYS, SHORTEST, Constant, Delays, Exponential, Lognormal, PerClient, Uniform
from offbeat.scenario.registry import summaries

LAWS: list[Delays] = [
    Constant(mean=7.0),
    Uniform(low=10.0, high=500.0),
    Lognormal(median=60.0, sigma=1.0),
    Exponential(mean=60.0),
    PerClient(means=(5.0, 6.0, 60.0)),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_asking_again_or_in_another_order_gives_the_same_times(law: Delays) -> None:
    keys = [(seed, client, index) for seed in (1, 2) for client in range(3) for index in range(3)]
    times = {key: law.seconds(*key, steps=4) for key in keys}
    assert {key: law.seconds(*key, steps=4) for key in reversed(keys)} == times
    assert len(set(times.values())) == len(keys)


def test_means_are_the_quantiles_of_the_clients_draw() -> None:
    u = draws.uniform(5, "speed", 3)
    assert Uniform(low=10.0, high=20.0).mean_of(5, 3) == 10 + 10 * u
    assert Lognormal(median=8.0, sigma=0.5).mean_of(5, 3) == 8 * exp(0.5 * NormalDist().inv_cdf(u))
    assert Exponential(mean=4.0).mean_of(5, 3) == pytest.approx(-4 * log(1 - u), rel=1e-15)
    assert Constant(mean=4.0).mean_of(5, 3) == 4
    assert PerClient(means=(1.0, 2.0, 3.0)).mean_of(5, 2) == 3


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
    assert fmean(means(Exponential(mean=3.0))) == pytest.approx(3, abs=4 * 3 / 4000**0.5)


def test_jobs_vary_by_the_jitter_around_the_clients_mean() -> None:
    law = Uniform(low=5.0, high=50.0, jitter=0.05)
    mean = law.mean_of(1, 0)
    times = [law.seconds(1, 0, index, steps=1) / mean for index in range(4000)]
    assert fmean(times) == pytest.approx(1, abs=4 * 0.05 / 4000**0.5)
    assert pstdev(times) == pytest.approx(0.05, abs=4 * 0.05 / 8000**0.5)


def test_a_job_never_takes_less_than_a_twentieth_of_the_mean() -> None:
    law = Constant(mean=10.0, jitter=1.0)
    times = [law.seconds(1, 0, index, steps=1) for index in range(200)]
    # P(1 + z < 0.05) = 17 %
    assert min(times) == 10 * SHORTEST == 0.5


def test_without_jitter_every_job_takes_what_is_expected() -> None:
    law = Lognormal(median=3.0, sigma=1.0, jitter=0.0)
    assert law.seconds(1, 2, 3, steps=9) == law.expected(1, 2, steps=9) == law.mean_of(1, 2)


def test_times_per_step_grow_with_the_steps() -> None:
    assert Constant(mean=2.0, jitter=0.0, unit="step").seconds(1, 0, 0, steps=9) == 18
    assert Constant(mean=2.0, jitter=0.0, unit="job").seconds(1, 0, 0, steps=9) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(mean=0.0), "constant delays: mean = 0.0: must be positive"),
        (lambda: Uniform(low=-1.0), "uniform delays: low = -1.0"),
        (lambda: Uniform(low=3.0, high=2.0), "low = 3.0 lies above high = 2.0"),
        (lambda: Lognormal(median=0.0), "lognormal delays: median = 0.0"),
        (lambda: Lognormal(sigma=-0.5), "lognormal delays: sigma = -0.5"),
        (lambda: Exponential(mean=float("nan")), "exponential delays: mean = nan"),
        (lambda: PerClient(means=()), "per-client delays: means is empty"),
        (lambda: PerClient(means=(1.0, 0.0)), r"per-client delays: means\[1\] = 0.0: must be positive"),
        (lambda: PerClient(means=(1.0, 2.0)).mean_of(0, 2), "none for client 2, there are 2"),
        (lambda: Constant(jitter=-0.1), "delays: jitter = -0.1"),
        (lambda: Constant(unit="epoch"), "delays: unit = 'epoch': must be 'job' or 'step'"),
    ],
)
def test_impossible_delays_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_every_law_has_a_summary() -> None:
    assert set(summaries(DELAYS)) == {"constant", "uniform", "lognormal", "exponential", "per_client"}
    assert all(summaries(DELAYS).values())
