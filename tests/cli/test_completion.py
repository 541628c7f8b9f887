"""The tab key: names come without an import of torch, and are those that 'offbeat list' has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from offbeat.cli import completion, list_command
from waiting import MAX_WAIT_SECONDS


def rendered() -> str:
    return "".join(f"{kind} {' '.join(list_command.registry(kind))}\n" for kind in list_command.KINDS)


def test_the_names_are_those_of_the_registries():
    """OFFBEAT_RENDER=1 pytest tests/cli/test_completion.py writes them."""
    if os.environ.get("OFFBEAT_RENDER"):
        completion.NAMES_FILE.write_text(rendered())
    assert completion.NAMES_FILE.read_text() == rendered(), test_the_names_are_those_of_the_registries.__doc__


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of these words; importing torch fails."""
    script = "import sys; sys.modules['torch'] = None; sys.argv = ['offbeat']; from offbeat.cli import main; main()"
    line = " ".join(["offbeat", *words])
    asked = {"_OFFBEAT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        env={**os.environ, **asked},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["run", "quick"], ["quickstart"]),
        (["compare", "digits", "--strategies", "fedavg,fedb"], ["fedavg,fedbuff"]),
        (["list", "strat"], ["strategies"]),
        (["list", "models", "res"], ["resnet", "resnet1d"]),
        (["list", "strategies", "nothing"], []),
    ],
)
def test_names_are_completed_without_torch(words, offered):
    assert completed(*words) == offered


def test_experiment_files_are_completed_too(monkeypatch):
    Path("studies").mkdir()
    Path("studies/one.yaml").write_text("")
    Path("studies/notes.txt").write_text("")
    assert list(completion.complete_source("stu")) == ["studies/"]
    assert list(completion.complete_source("studies/")) == ["studies/one.yaml"]
    assert list(completion.complete_source("nowhere/x")) == []


def test_a_shell_can_be_taught(offbeat, monkeypatch):
    helped = offbeat("--help").out
    assert "--install-completion" in helped
    assert "--show-completion" in helped
