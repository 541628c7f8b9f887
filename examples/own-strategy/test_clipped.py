"""What the method does, in numbers worked by hand, and that it is lawful. Run with: pytest"""

import pytest
from clipped import Clipped

from offbeat.core.parts.staleness import Constant
from offbeat.testing import ScriptedEngine, check, hand_world


def engine() -> ScriptedEngine:
    made = ScriptedEngine(Clipped(rate=0.5, bound=2.0, staleness=Constant()), hand_world([0.0, 0.0], {0: 10, 1: 10}))
    made.start()
    return made


def test_an_update_of_usual_length_counts_in_full():
    played = engine()
    played.arrive(0, [3.0, 4.0], at=1.0)
    # length 5, median 5, allowed 10: c = 1; w = 0 + 0.5 * (3, 4)
    assert played.model.tolist() == [1.5, 2.0]


def test_an_update_that_is_much_longer_is_cut_to_what_is_allowed():
    played = engine()
    played.arrive(0, [3.0, 4.0], at=1.0)  # delta (3, 4): w = (1.5, 2)
    played.arrive(0, [4.5, 6.0], at=2.0)  # the same from there: w = (3, 4)
    played.arrive(0, [6.0, 8.0], at=3.0)  # and again: w = (4.5, 6)
    played.arrive(1, [60.0, 80.0], at=4.0)
    # sent (0, 0): length 100; median of 5, 5, 5, 100 is 5, allowed 10: c = 0.1; w = (4.5, 6) + 0.5 * 0.1 * (60, 80)
    assert played.model.tolist() == pytest.approx([7.5, 10.0])


def test_the_median_forgets():
    state = engine().state
    strategy = Clipped(bound=2.0, window=3)
    for length in (1.0, 1.0, 1.0, 9.0):
        c = strategy._shortened(state, length)
    # the last three: 1, 1, 9; median 1, allowed 2: c = 2/9
    assert c == pytest.approx(2 / 9)


@pytest.mark.parametrize("finding", check(Clipped(), scripts=12), ids=lambda finding: finding.law)
def test_it_keeps_the_laws(finding):
    assert finding.passed, finding
