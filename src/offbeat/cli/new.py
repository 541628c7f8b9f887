"""offbeat new: files to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.verb import App

app = App(no_args_is_help=True, help="Write a file to start from.")


@app.callback()
def new() -> None:
    """Write a file to start from."""


@app.command("site")
def site(name: Annotated[str, typer.Argument(metavar="NAME", help="Of the site; the file is called NAME.py.")]) -> None:
    """Write a site's own file: its model and its data, commented, and working as it stands."""
    from offbeat.cli.output import say
    from offbeat.core.errors import ConfigError, RunError
    from offbeat.deploy.sitefile import starting_text

    path = Path(name if name.endswith(".py") else f"{name}.py")
    if path.suffix != ".py" or not re.fullmatch(r"\w[\w .-]*", path.stem):
        raise ConfigError(f"a site's name is letters, digits, '-', '_' and '.', such as hospital-a, not {name!r}")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(starting_text(path.stem, path.name))
    except FileExistsError:
        raise ConfigError(f"{path} is there already: choose another name") from None
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
    say(f"{path} is written: put your model and your data in, then try it with")
    say(f"  offbeat join --check --data {path}")
