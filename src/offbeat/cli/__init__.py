"""The command line: one file a verb. Heavy imports wait until a verb runs, so that help answers at once."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import NoReturn

import typer

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
from offbeat.cli.help_format import App

app = App(
    name="offbeat",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("reproduce")(reproduce.reproduce)
app.command("which")(which.which)
app.command("list")(list_command.list_names)
app.command("show")(show.show)
app.command("explain")(explain.explain)
app.command("watch")(watch.watch)
app.command("dashboard")(dashboard.dashboard)
app.command("check")(check.check)
app.command("export")(export.export)
app.command("replay")(replay.replay)
app.command("serve")(serve.serve)
app.command("join")(join.join)
app.command("status")(status.status)
app.command("keys")(keys.keys)
app.add_typer(new.app, name="new")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"offbeat {__version__}")
        raise typer.Exit


@app.callback()
def offbeat(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Asynchronous federated learning for PyTorch: simulate, compare, check, deploy."""


def main() -> None:
    """Every mistake is one line on standard error: exit 2 for what was asked, 1 for what went wrong, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± still gets its table
    try:
        app()
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except Exception as error:
        import sqlite3

        from offbeat.core.errors import ConfigError, DataError, OffbeatError

        if isinstance(error, OffbeatError):
            _end(str(error), 2 if isinstance(error, (ConfigError, DataError)) else 1)
        if isinstance(error, (OSError, sqlite3.Error)):
            _end(str(error), 1)
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("offbeat"):
            _end(f"{error.name} is not installed: the command line needs all that 'pip install offbeat' brings", 1)
        if (said := _own(error)) is not None:
            _end(said, 1)
        if (needed := _memory(error)) is not None:
            _end(
                f"this needs more memory than there is{needed}: make the model, the data or the number of clients "
                "smaller",
                1,
            )
        if isinstance(error, OverflowError) or "without overflow" in str(error):  # of Python, of torch: a rate of 1e308
            _end(f"a setting is too large to compute with, or makes something so: {error} ({_place(error)})", 1)
        if sys.flags.dev_mode:
            raise
        _end(
            f"a bug in offbeat: {type(error).__name__}: {error} ({_place(error)}); 'python -X dev -m offbeat …' "
            "shows more",
            1,
        )


def _end(message: str, status: int) -> NoReturn:
    from offbeat.cli.terminal import say

    say(f"offbeat: {' '.join(message.split())}", err=True)
    sys.exit(status)


# how torch, numpy and Python say that a size is too large: mostly not with a MemoryError
TOO_LARGE = (
    "memoryerror",
    "allocate memory",
    "enough memory",
    "out of memory",
    "unable to allocate",
    "maximum allowed dimension",
    "array is too big",
    "calculation overflowed",
    "multiplication overflow",
    "overflow when unpacking",
    "too large to convert",
)


def _memory(error: Exception) -> str | None:
    """How much was asked for, in brackets, if an error is about memory; None if it is not."""
    import re

    message = f"{type(error).__name__}: {error}".lower()
    if not isinstance(error, (MemoryError, OverflowError, RuntimeError, TypeError, ValueError)) or not any(
        w in message for w in TOO_LARGE
    ):
        return None
    asked = re.search(r"allocate (\d\S* \w+)", message)
    return f" ({asked[1]})" if asked else ""


def _own(error: BaseException) -> str | None:
    """Of somebody's own code, where it had a part in it and there is any."""
    if "offbeat.experiment.spec.user_code" not in sys.modules or sys.flags.dev_mode:
        return None
    from offbeat.experiment.spec import user_code

    said = user_code.blamed(error)
    return None if said is None else f"{said} (in code of your own; 'python -X dev -m offbeat …' shows more)"


def _place(error: BaseException) -> str:
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"
