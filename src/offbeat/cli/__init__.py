"""The command line: one file per command.

Commands import packages, which load their modules when a name is first used, so that help appears at once.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any, NoReturn, get_type_hints

import click
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from offbeat import __version__
from offbeat.cli import (
    check,
    compare,
    dashboard,
    explain,
    export,
    join,
    keys,
    list_command,
    new,
    replay,
    reproduce,
    run,
    serve,
    show,
    status,
    sweep,
    watch,
    which,
)
from offbeat.cli.terminal import say
from offbeat.core.errors import ConfigError, DataError, OffbeatError
from offbeat.experiment import spec


def unescape_brackets(text: str) -> str:
    """Undo the escaping of brackets that typer applies for rich markup."""
    return text.replace("\\[", "[")


class Command(TyperCommand):
    """A command that prints its help as written.

    typer escapes brackets for rich even without rich markup, and with recent click versions it loses the help of
    arguments. Both are corrected here; versions without these problems are not affected.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        function = getattr(self.callback, "__wrapped__", None)
        hints = get_type_hints(function, include_extras=True) if function is not None else {}
        for argument in self.params:
            if isinstance(argument, TyperArgument) and not argument.help:
                metadata = getattr(hints.get(argument.name or ""), "__metadata__", ())
                argument.help = next((each.help for each in metadata if isinstance(each, ArgumentInfo)), None)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing, because typer has written the arguments and recent click versions would repeat them."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the help text of the command without escaped brackets."""
        return unescape_brackets(super().get_help(ctx))


class CommandGroup(TyperGroup):
    """A group of commands that prints its help as written."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the help text of the group without escaped brackets."""
        return unescape_brackets(super().get_help(ctx))


def make_app(commands: dict[str, Callable[..., None]], **settings: Any) -> typer.Typer:
    """Return an app with these commands, which help lists in this order."""
    group = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True, **settings)
    for name, function in commands.items():
        group.command(name, cls=Command)(function)
    return group


app = make_app(
    {
        "run": run.run,
        "compare": compare.compare,
        "sweep": sweep.sweep,
        "reproduce": reproduce.reproduce,
        "which": which.which,
        "list": list_command.list_names,
        "show": show.show,
        "explain": explain.explain,
        "watch": watch.watch,
        "dashboard": dashboard.dashboard,
        "check": check.check,
        "export": export.export,
        "replay": replay.replay,
        "serve": serve.serve,
        "join": join.join,
        "status": status.status,
        "keys": keys.keys,
    },
    name="offbeat",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(make_app(new.COMMANDS, name="new", help="Write a file to start from."))


def _print_version(value: bool) -> None:
    """Print the version and exit if `--version` is given."""
    if value:
        typer.echo(f"offbeat {__version__}")
        raise typer.Exit


@app.callback()
def offbeat(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Asynchronous federated learning for PyTorch: simulate, compare, check, deploy."""


def main() -> None:
    """Run a command, and report each error in one line on standard error.

    Exit status: 2 for invalid input, 1 for other errors, 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± still prints tables
    try:
        app()
    except KeyboardInterrupt:
        _exit("interrupted", 130)
    except Exception as error:
        message, status = _describe_error(error)
        if message is None:
            raise
        _exit(message, status)


def _exit(message: str, status: int) -> NoReturn:
    """Print one line to standard error and end the process."""
    say(f"offbeat: {' '.join(message.split())}", err=True)
    sys.exit(status)


def _describe_error(error: Exception) -> tuple[str | None, int]:
    """Return message and exit status for an error; no message for a bug in development mode."""
    if isinstance(error, OffbeatError):
        return str(error), 2 if isinstance(error, (ConfigError, DataError)) else 1
    if isinstance(error, (OSError, sqlite3.Error)):
        return str(error), 1
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("offbeat"):
        return f"{error.name} is not installed; 'pip install offbeat' installs all that the command line needs", 1
    hint = "'python -X dev -m offbeat …' shows the traceback"
    may_be_user_code = not sys.flags.dev_mode and "offbeat.experiment.spec.user_code" in sys.modules
    if may_be_user_code and (message := spec.describe_user_error(error)) is not None:
        return f"{message} (in your own code; {hint})", 1
    if (size := _requested_memory(error)) is not None:
        return f"not enough memory{size}: use a smaller model, less data or fewer clients", 1
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename}:{frame.lineno}"
    # Python and torch raise these for a rate of 1e308
    if isinstance(error, OverflowError) or "without overflow" in str(error):
        return f"a setting is too large, or leads to values that are: {error} ({place})", 1
    if sys.flags.dev_mode:
        return None, 1
    return f"a bug in offbeat: {type(error).__name__}: {error} ({place}); {hint}", 1


# messages of torch, numpy and Python for sizes that are too large; most are not a MemoryError
TOO_LARGE = re.compile(
    "memoryerror|allocate memory|enough memory|out of memory|unable to allocate|maximum allowed dimension|"
    "array is too big|calculation overflowed|multiplication overflow|overflow when unpacking|too large to convert"
)


def _requested_memory(error: Exception) -> str | None:
    """Return the requested memory in brackets, if it is known; None if the error is not about memory."""
    message = f"{type(error).__name__}: {error}".lower()
    kinds = (MemoryError, OverflowError, RuntimeError, TypeError, ValueError)
    if not isinstance(error, kinds) or not TOO_LARGE.search(message):
        return None
    size = re.search(r"allocate (\d\S* \w+)", message)
    return f" ({size[1]})" if size else ""
