"""`offbeat run --explain-training` prints the kernel for a model, and why the others are not used."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from offbeat.cli import app


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["strategy=fedavg"], [["dense", "yes"]]),
        (["strategy=fedpac"], [["dense", "no", "HeadThenBody", "has", "its", "own", "loss"], ["traced", "yes"]]),
    ],
)
def test_the_first_kernel_that_can_train_the_jobs_is_used(settings: list[str], expected: list[list[str]]) -> None:
    changes = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(app, ["run", "quickstart", *changes, "--explain-training"])
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.output.splitlines()] == [["kernel", "used", "reason"], *expected]
