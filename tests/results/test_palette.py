"""Colours of methods are constant and distinguishable."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from offbeat.core.strategies import REGISTRY
from offbeat.results.palette import BUILT_IN_SLOTS, HUES, method_styles

PAPERS = {"white": ("#FFFFFF", 0), "dark": ("#15181C", 1)}  # as figures and pages have them

# how light of the three primaries reaches people without red cones, without green cones (Machado et al. 2009)
EYES = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
# from linear light to Oklab, in which equal distances look equally far apart (Ottosson 2020)
CONES = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])  # fmt: skip
LAB = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])  # fmt: skip


def light(colour: str) -> np.ndarray:
    """Of a colour of the web, linear."""
    given = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it."""
    low, high = sorted(float(light(c) @ [0.2126, 0.7152, 0.0722]) + 0.05 for c in (one, other))
    return high / low


def test_every_built_in_method_has_a_look_of_its_own():
    assert BUILT_IN_SLOTS.keys() == REGISTRY.keys()
    assert len(set(BUILT_IN_SLOTS.values())) == len(REGISTRY)
    assert len(set(method_styles(REGISTRY).values())) == len(REGISTRY)


def test_a_method_looks_the_same_whoever_is_beside_it():
    assert method_styles(["fedbuff"])["fedbuff"] == method_styles([*REGISTRY, "mine.py:CosBuff"])["fedbuff"]
    one, other = method_styles(["a", "b", "c", "fedavg"]), method_styles(["fedavg", "c", "b", "a"])
    assert one == other


def test_own_methods_take_hues_that_nobody_has():
    names = ["fedavg", "fedbuff", "mine.py:CosBuff", "net.py:Other", "<script>"]
    assert len({style.colour for style in method_styles(names).values()}) == len(names)
    assert {style.dash for style in method_styles(names).values()} == {"solid"}


def test_variants_of_a_method_keep_its_hue_and_take_other_lines():
    made = method_styles(["fedbuff", "fedbuff(k=2)", "fedbuff(k=5)"])
    assert len({style.colour for style in made.values()}) == 1
    assert len({style.dash for style in made.values()}) == 3


def test_thirty_two_names_have_thirty_two_looks_and_more_are_not_refused():
    assert len(set(method_styles(f"m{i}" for i in range(32)).values())) == 32
    assert len(method_styles(f"m{i}" for i in range(50))) == 50


@pytest.mark.parametrize("paper", PAPERS)
def test_every_hue_stands_out_from_the_paper(paper):
    background, which = PAPERS[paper]
    for hue in HUES:
        assert contrast(hue[which], background) >= 3  # what WCAG asks of graphics


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("eyes", EYES)
def test_hues_can_be_told_apart_by_colour_blind_readers(paper, eyes):
    """0.02 is about what can just be seen side by side; lines in a figure need more than four times that."""
    seen = [np.cbrt(CONES @ np.clip(EYES[eyes] @ light(hue[PAPERS[paper][1]]), 0, 1)) @ LAB.T for hue in HUES]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 0.09
