from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import Answer, Call, answer, quickstart
from damaged_runs import CHANGES, kill_after, stop_after

from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def offbeat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: object) -> Answer:
        return answer(monkeypatch, capsys, *arguments)

    return call


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clients, softmax regression: `whole` is finished, `killed` as a SIGKILL in the middle leaves it,
    `stopped` after Ctrl-C.
    """
    base = tmp_path_factory.mktemp("made")
    experiment = quickstart(*CHANGES)
    runs.execute_run(runs.create_run(base / "whole", experiment))
    kill_after(runs.create_run(base / "running", experiment), 16, keep=base / "killed")
    stop_after(runs.create_run(base / "stopped", experiment), 16)
    return base


@pytest.fixture
def whole(made: Path) -> Path:
    return Path(shutil.copytree(made / "whole", "whole"))


@pytest.fixture
def killed(made: Path) -> Path:
    return Path(shutil.copytree(made / "killed", "killed"))


@pytest.fixture
def stopped(made: Path) -> Path:
    return Path(shutil.copytree(made / "stopped", "stopped"))


@pytest.fixture
def digest(made: Path) -> str:
    return Run(made / "whole").digest()
