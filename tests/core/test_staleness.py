"""How much an old update counts."""

import math

import numpy as np
import pytest

from core import messages
from offbeat.core.errors import ConfigError
from offbeat.core.parts.staleness import STALENESS, Constant, Exponential, Hinge, Polynomial, as_staleness


@pytest.mark.parametrize(
    ("staleness", "u", "weight"),
    [
        (Constant(), 100, 1.0),
        (Polynomial(a=0.5), 0, 1.0),
        (Polynomial(a=0.5), 3, 0.5),  # 4^(-1/2)
        (Polynomial(a=0.5), 8, 1 / 3),  # 9^(-1/2)
        (Polynomial(a=1.0), 4, 0.2),  # 1/5
        (Polynomial(a=0.0), 7, 1.0),
        (Hinge(a=10, b=4), 4, 1.0),  # up to b it counts fully
        (Hinge(a=10, b=4), 5, 1 / 11),  # 1 / (10 * 1 + 1): the "+1" is there
        (Hinge(a=10, b=4), 6, 1 / 21),
        (Hinge(a=0.5, b=0), 1, 1 / 1.5),
        (Exponential(a=0.5), 2, math.exp(-1)),
    ],
)
def test_weights_worked_by_hand(staleness: object, u: int, weight: float) -> None:
    assert staleness(u) == pytest.approx(weight, rel=1e-15)


@pytest.mark.parametrize("name", STALENESS)
def test_a_fresh_update_counts_fully_and_age_never_helps(name: str) -> None:
    staleness = as_staleness(name)
    weights = [staleness(u) for u in range(30)]
    assert weights[0] == 1.0
    assert weights == sorted(weights, reverse=True)
    assert min(weights) > 0


def test_a_function_passes_through_and_a_name_becomes_one() -> None:
    assert as_staleness("hinge") == Hinge()
    mine = Polynomial(a=0.3)
    assert as_staleness(mine) is mine


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=messages.UNKNOWN_STALENESS):
        as_staleness("polinomial")


@pytest.mark.parametrize(
    "make", [lambda: Polynomial(a=-0.5), lambda: Hinge(a=-1), lambda: Hinge(b=-1), lambda: Exponential(a=-1)]
)
def test_an_exponent_that_rewards_staleness_is_refused(make: object) -> None:
    with pytest.raises(ConfigError, match=messages.NEGATIVE):
        make()


def test_a_weight_is_a_plain_number_whatever_the_exponent_is() -> None:
    """(3 + 1) to the power -1/2 is 1/2, in any precision; a NumPy number would make all that follows one."""
    weight = Polynomial(a=np.float32(0.5))(3)
    assert type(weight) is float
    assert weight == 0.5
