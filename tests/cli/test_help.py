"""Help describes everything, and prints nothing that was meant for a machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
import typer.main

from offbeat.cli import app


def verbs(command: click.Command, *before: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield before, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from verbs(inner, *before, name)


ALL = list(verbs(typer.main.get_command(app)))


@pytest.mark.parametrize(("words", "command"), ALL, ids=[" ".join(words) or "offbeat" for words, _ in ALL])
class TestEveryVerb:
    def test_its_help_is_plain_text(self, offbeat, words, command):
        told = offbeat(*words, "--help")
        assert (told.status, told.err) == (0, "")
        assert "\x1b" not in told.out
        assert "\\" not in told.out
        assert not re.search(r"\[/?(bold|red|green|dim|/)", told.out)
        assert "``" not in told.out

    def test_it_says_what_it_does(self, words, command):
        assert (command.help or "").strip()

    def test_every_option_and_argument_is_described(self, offbeat, words, command):
        for parameter in command.params:
            assert (getattr(parameter, "help", "") or "").strip(), (words, parameter.name)
        if command.params and isinstance(command, click.Command):
            context = click.Context(command, info_name="offbeat", terminal_width=400, max_content_width=400)
            told = " ".join(command.get_help(context).split())
            for parameter in command.params:
                assert told.count(" ".join(str(getattr(parameter, "help", "")).split())) >= 1, parameter.name
            for argument in (each for each in command.params if isinstance(each, click.Argument)):
                assert told.count(" ".join(str(getattr(argument, "help", "")).split())) == 1, argument.name
