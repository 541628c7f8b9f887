"""Tests of choices from installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiment import messages
from offbeat.core.errors import ConfigError
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.experiment.spec import choices
from offbeat.experiment.spec.serialization import FileContext, experiment_from_values, to_values

CODE = """
from dataclasses import dataclass
from torch import nn

@dataclass(frozen=True, kw_only=True)
class CosBuff:
    k: int = 3
    def init(self, world): ...
    def on_event(self, state, event): ...

def net(num_outputs, hidden=4):
    return nn.Linear(hidden, num_outputs)
"""
ENTRIES = """
[offbeat.strategies]
cosbuff = cos_of_a_package:CosBuff
fedbuff = cos_of_a_package:CosBuff
gone = cos_of_a_package:Gone
broken = no_module_of_a_package:It

[offbeat.models]
cosnet = cos_of_a_package:net
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package as pip does: a module and its metadata."""
    info = tmp_path / "offbeat_cos-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offbeat-cos\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "cos_of_a_package.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    caches = (choices._entry_points, choices._warn_shadowed)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
    sys.modules.pop("cos_of_a_package", None)


def test_package_names_are_accepted_like_built_in_names() -> None:
    experiment = experiment_from_values({"strategy": {"name": "cosbuff", "k": 5}, "model": "cosnet"})
    assert to_values(experiment)["strategy"] == {"name": "cosbuff", "k": 5}
    assert to_values(experiment)["model"] == {"name": "cosnet", "hidden": 4}
    assert experiment_from_values(to_values(experiment)) == experiment
    assert choices.user_files(experiment) == []  # a package is no file of one's own: its version is its own matter


def test_built_in_names_take_precedence_and_load_no_package(caplog: pytest.LogCaptureFixture) -> None:
    assert choices.find_choice("strategy", "fedbuff") is FedBuff
    assert choices._entry_points.cache_info().currsize == 0
    for _ in range(2):
        with messages.expect("unknown strategy 'cosbuf': did you mean 'cosbuff'?", error=ConfigError):
            choices.find_choice("strategy", "cosbuf")
    assert caplog.messages == [messages.SHADOWED]
    assert "cos_of_a_package" not in sys.modules


@pytest.mark.parametrize(("name", "error"), [("gone", "AttributeError"), ("broken", "ModuleNotFoundError")])
def test_a_broken_package_is_named_in_one_line(name: str, error: str) -> None:
    with messages.expect(messages.BROKEN_PACKAGE.format(name, error), error=ConfigError):
        choices.find_choice("strategy", name)


def test_reading_an_experiment_loads_no_package() -> None:
    plain = to_values(experiment_from_values({"strategy": {"name": "cosbuff", "k": 5}}))
    sys.modules.pop("cos_of_a_package")
    looked = experiment_from_values(plain, FileContext(runs_code=False))
    assert to_values(looked) == plain
    assert "cos_of_a_package" not in sys.modules


def test_offbeat_list_includes_package_names(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from offbeat.cli import main

    monkeypatch.setattr(sys, "argv", ["offbeat", "list", "models"])
    with pytest.raises(SystemExit):
        main()
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["cosnet", "from the package offbeat-cos 1.2"] in [[first, rest.strip()] for first, rest in rows]
