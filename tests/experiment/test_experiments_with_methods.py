"""Tests of experiment files with a methods section."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiment import messages
from offbeat.core.errors import ConfigError
from offbeat.core.parts.staleness import Polynomial
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.orthofl import OrthoFL
from offbeat.experiment.spec import experiment_files, methods
from offbeat.experiment.spec.methods import ExperimentWithMethods
from offbeat.scenario.partition import Dirichlet


def read(tmp_path: Path, text: str) -> ExperimentWithMethods:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return methods.read_experiment_with_methods(path)


@pytest.mark.parametrize(
    "section",
    [
        "methods: [fedbuff(k=2,lr=0.5), fedasync(staleness=polynomial(a=1)), orthofl]",  # YAML cuts the first in two
        "methods:\n  - fedbuff(k=2, lr=0.5)\n  - fedasync(staleness=polynomial(a=1))\n  - orthofl",
        "methods: fedbuff(k=2,lr=0.5), fedasync(staleness=polynomial(a=1)), orthofl",
    ],
)
def test_methods_in_a_list_are_their_own_labels(tmp_path: Path, section: str) -> None:
    made = read(tmp_path, f"clients: 4\n{section}\n")
    assert dict(made.methods) == {
        "fedbuff(k=2,lr=0.5)": FedBuff(k=2, lr=0.5),
        "fedasync(staleness=polynomial(a=1))": FedAsync(staleness=Polynomial(a=1)),
        "orthofl": OrthoFL(),
    }
    assert made.experiment.clients == 4


def test_a_mapping_defines_labels(tmp_path: Path) -> None:
    made = read(tmp_path, "methods:\n  small buffer: fedbuff(k=2)\n  2: {name: fedbuff, k: 5}\n")
    assert dict(made.methods) == {"small buffer": FedBuff(k=2), "2": FedBuff(k=5)}


def test_the_strategy_of_the_file_is_the_default_of_methods_with_its_name(tmp_path: Path) -> None:
    made = read(tmp_path, "strategy: {name: fedbuff, lr: 0.5}\nmethods: [fedbuff, fedbuff(k=2), fedasync]\n")
    assert dict(made.methods) == {
        "fedbuff": FedBuff(lr=0.5),
        "fedbuff(k=2)": FedBuff(k=2, lr=0.5),
        "fedasync": FedAsync(),
    }


def test_every_choice_can_be_a_call(tmp_path: Path) -> None:
    text = "strategy: fedbuff(k=3,staleness=polynomial(a=1))\npartition: dirichlet(alpha=0.7)\n"
    made = read(tmp_path, f"{text}methods: [fedbuff, fedbuff(lr=0.5)]\n")
    own = FedBuff(k=3, staleness=Polynomial(a=1))
    assert made.experiment.strategy == own
    assert made.experiment.partition == Dirichlet(alpha=0.7)
    assert dict(made.methods) == {"fedbuff": own, "fedbuff(lr=0.5)": replace(own, lr=0.5)}
    assert experiment_files.parse_experiment(text) == made.experiment


def test_a_single_run_needs_a_strategy_from_file_or_change(tmp_path: Path) -> None:
    several = "methods: [fedbuff, fedasync]\n"
    assert read(tmp_path, several).needs_method_choice([])
    assert read(tmp_path, several).needs_method_choice(["strategy.k=2", "clients=3"])
    assert not read(tmp_path, several).needs_method_choice(["strategy=fedbuff"])
    assert not read(tmp_path, f"strategy: fedbuff\n{several}").needs_method_choice([])
    assert not read(tmp_path, "clients: 3\n").needs_method_choice([])


@pytest.mark.parametrize(("text", "words"), messages.METHODS_SECTIONS)
def test_an_invalid_methods_section_is_one_line_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    with messages.expect(f"^{tmp_path / 'study.yaml'}", words, error=ConfigError):
        read(tmp_path, f"{text}\n")
