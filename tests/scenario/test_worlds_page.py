"""docs/worlds.md: what it shows runs, and it names everything there is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.scenario.availability import AVAILABILITY
from offbeat.scenario.delays import DELAYS
from offbeat.scenario.faults import FAULTS
from offbeat.scenario.models import Linear
from offbeat.scenario.network import NETWORKS
from offbeat.scenario.streaming import STREAMS

PAGE = (Path(__file__).parents[2] / "docs" / "worlds.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("title", "registry"),
    [
        ("Delays", DELAYS),
        ("Network", NETWORKS),
        ("Availability", AVAILABILITY),
        ("Faults", FAULTS),
        ("Streams", STREAMS),
    ],
)
def test_it_names_everything_there_is_in_order(title: str, registry: dict[str, type]) -> None:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    assert [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")] == list(registry)


def test_its_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for code in blocks("python"):
        exec(compile(code, "worlds.md", "exec"), {})
    assert "FedBuff" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(3))
def test_its_experiments_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic", reason="experiment files need pydantic; the Python API does not")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phones.csv").write_text(blocks("csv")[0])
    assert len(blocks("yaml")) == 3
    experiment = replace(
        experiment_files.parse_experiment(blocks("yaml")[number]),
        model=Linear(),
        until=Until(updates=20),
        evaluate_every=1e6,
    )
    assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment
    assert build.build_engine(build.setup(experiment), experiment).run().updates == 20
