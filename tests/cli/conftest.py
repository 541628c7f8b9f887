from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Answer, Call, answer


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def offbeat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: object) -> Answer:
        return answer(monkeypatch, capsys, *arguments)

    return call
