"""Tests of labels and folder names of methods."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from experiment import messages
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.methods import MAX_FOLDER_NAME, distinct_methods, folder_names


def test_folder_names_resemble_labels() -> None:
    assert folder_names(["fedavg", "fedbuff(k=2,lr=0.5)", "mine.py:CosBuff(k=3)", "fedcompass+M"]) == {
        "fedavg": "fedavg",
        "fedbuff(k=2,lr=0.5)": "fedbuff-k-2-lr-0.5",
        "mine.py:CosBuff(k=3)": "mine.py-CosBuff-k-3",
        "fedcompass+M": "fedcompass+M",
    }


def test_equal_folder_names_get_a_number() -> None:
    assert folder_names(["a(b)", "a[b]", "A-B", "a-b-2", "«»", "…"]) == {
        "a(b)": "a-b",
        "a[b]": "a-b-2",
        "A-B": "A-B-3",  # where capitals do not count, this would be the first
        "a-b-2": "a-b-2-2",
        "«»": "method",
        "…": "method-2",
    }


@given(st.lists(st.text(max_size=200), unique=True, max_size=8))
def test_folder_names_are_distinct_and_portable(labels: list[str]) -> None:
    made = folder_names(labels)
    assert list(made) == labels
    assert len({name.casefold() for name in made.values()}) == len(labels)
    for name in made.values():
        assert re.fullmatch(r"[A-Za-z0-9._+-]+", name)
        assert name[0] not in "-."
        assert name[-1] not in "-."
        assert len(name) <= MAX_FOLDER_NAME + 2  # and a number below ten


def test_methods_with_equal_settings_are_run_once() -> None:
    five, two = Experiment(strategy=FedBuff(k=5)), Experiment(strategy=FedBuff(k=2))
    experiments = [("fedbuff", five), ("fedbuff(k=2)", two), ("fedbuff(k=5)", five), ("fedbuff", five)]
    assert distinct_methods(experiments) == ({"fedbuff": five, "fedbuff(k=2)": two}, messages.DUPLICATE_METHODS)
