"""Invalid commands are refused in one line before a folder is made."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from command_line import TINY, refused

from cli import messages


@pytest.mark.parametrize(("command", "words"), [(command, words) for command, *words in messages.REFUSED])
def test_an_invalid_command_is_one_line_and_leaves_no_folder(offbeat, command, words):
    refused(offbeat(*shlex.split(command.replace("TINY", shlex.join(TINY)))), *words)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("changes", "words"), messages.INVALID_SETTINGS)
def test_an_invalid_setting_is_one_line_with_the_nearest_valid_one_and_leaves_no_folder(offbeat, changes, words):
    sets = [word for change in changes for word in ("--set", change)]
    refused(offbeat("run", "quickstart", *TINY, *sets, "--out", "x"), *words)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("content", "words"), messages.INVALID_FILES)
def test_an_invalid_experiment_file_is_one_line_that_names_it(offbeat, content, words):
    Path("broken.yaml").write_bytes(content)
    refused(offbeat("run", "broken.yaml", "--out", "x"), "broken.yaml", *words)
    assert not Path("x").exists()


def test_the_options_of_every_command_are_checked_by_the_parser(offbeat):
    for command in ("frobnicate", "run --bogus", "run quickstart --seed many", "list a b c"):
        result = offbeat(*command.split())
        assert result.status == 2
        assert "Error" in result.err


def test_a_source_longer_than_any_file_name_is_one_line(offbeat):
    refused(offbeat("run", "x" * 5000), status=1)


def test_a_message_does_not_list_all_presets(offbeat):
    assert len(offbeat("run", "qqq").err) < 200
