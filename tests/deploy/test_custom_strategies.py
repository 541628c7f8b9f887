"""A server's own code and its sites: a strategy of one's own is served; what a server names is never run at a site."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from deploy import messages
from in_process_transport import InProcessTransport
from offbeat.core.errors import OffbeatError
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.deploy import message_codec
from offbeat.deploy.run_server import ServeOptions, serve_run
from offbeat.deploy.site_client import Site
from offbeat.deploy.site_data import PartitionSource
from offbeat.engine.until import Until
from offbeat.experiment.run.run_folder import create_run
from offbeat.experiment.spec import choices, experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.models import Linear
from offbeat.training.evaluation import Survey
from offbeat.training.trainer import Training

TRAINING = Training(lr=0.05, steps=2, batch=8)
TINY = Experiment(clients=2, model=Linear(), training=TRAINING, until=Until(updates=6), survey=Survey(examples=0))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def site(number: int = 0) -> Site:
    return Site(Path(f"home-{number}"), f"site-{number}", PartitionSource(number))


def test_a_strategy_of_ones_own_is_served() -> None:
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nfrom offbeat.core.strategies.fedasync import FedAsync\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(FedAsync):\n    pass\n"
    )
    run = create_run(Path("run"), replace(TINY, strategy=choices.default_choice("strategy", "mine.py:Mine")))
    outcome = serve_run(
        run, partial(InProcessTransport, {100 + n: site(n) for n in range(2)}), ServeOptions(min_sites=2)
    )
    assert outcome is not None
    assert outcome.updates == 6


def greeting(setting: str, name: str) -> bytes:
    """Of a server whose experiment names this."""
    lines = experiment_files.to_yaml(replace(TINY, strategy=FedAsync())).splitlines()
    text = "\n".join([line for line in lines if not line.startswith(f"{setting}:")] + [f"{setting}: {name}"])
    return message_codec.encode(message_codec.Greeting("r", text, "0" * 64, "none"), "r")


@pytest.mark.parametrize("setting", ["model", "data", "loss", "partition"])
def test_a_site_runs_nothing_that_a_server_names(setting: str) -> None:
    Path("there.py").write_text("from pathlib import Path\nPath('run').touch()\ndef it(): ...\n")
    with pytest.raises(OffbeatError, match=messages.USER_CODE):
        site().handle(greeting(setting, f"{Path.cwd()}/there.py:it"))
    assert not Path("run").exists()
