"""The registries have summaries; docs/worlds.md and docs/data.md name all entries, and what they show runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from offbeat.cli import list_command
from offbeat.core.errors import ConfigError
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.scenario.availability import AVAILABILITY
from offbeat.scenario.data import DATASETS
from offbeat.scenario.delays import DELAYS
from offbeat.scenario.faults import FAULTS
from offbeat.scenario.models import MODELS, Linear
from offbeat.scenario.network import NETWORKS
from offbeat.scenario.partition import PARTITIONS
from offbeat.scenario.scenario_settings import find_entry, summaries
from offbeat.scenario.streaming import STREAMS
from scenario import messages

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "worlds.md").read_text(encoding="utf-8")
WORLD = {"Delays": DELAYS, "Network": NETWORKS, "Availability": AVAILABILITY, "Faults": FAULTS, "Streams": STREAMS}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("registry", [*WORLD.values(), DATASETS, MODELS, PARTITIONS])
def test_every_entry_has_a_summary_of_one_line(registry: dict[str, type]) -> None:
    assert all(line.endswith((".", ").")) and "\n" not in line for line in summaries(registry).values())


def test_entries_are_found_by_name() -> None:
    assert {cls.name: cls for cls in FAULTS.values()} == FAULTS
    assert find_entry("partition", PARTITIONS, "iid") is PARTITIONS["iid"]
    with pytest.raises(ConfigError, match=messages.PARTITION_NAME):
        find_entry("partition", PARTITIONS, "dirchlet")


def test_the_command_line_lists_them() -> None:
    for kind, registry in (("faults", FAULTS), ("streams", STREAMS), ("availability", AVAILABILITY)):
        assert list(list_command.registry(kind)) == list(registry)
    assert "bandwidth" in list_command.registry("networks")


@pytest.mark.parametrize("title", WORLD)
def test_it_names_everything_there_is_in_order(title: str) -> None:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    assert [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")] == list(WORLD[title])


def test_the_page_of_data_names_every_data_set() -> None:
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == list(DATASETS)


def test_its_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for code in blocks("python"):
        exec(compile(code, "worlds.md", "exec"), {})
    assert "FedBuff" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(3))
def test_its_experiments_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
