"""offbeat new: files to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.help_format import App

app = App(no_args_is_help=True, help="Write a file to start from.")


@app.callback()
def new() -> None:
    """Write a file to start from."""


@app.command("site")
def site(name: Annotated[str, typer.Argument(metavar="NAME", help="Of the site; the file is called NAME.py.")]) -> None:
    """Write a site's own file: its model and its data, commented, and working as it stands."""
    from offbeat.cli.terminal import say
    from offbeat.deploy.site_file import starting_text

    path = _named(name, ".py", "a site", "hospital-a")
    _write(path, starting_text(path.stem, path.name))
    say(f"{path} is written: put your model and your data in, then try it with")
    say(f"  offbeat join --check --data {path}")


@app.command("strategy")
def strategy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the method; the file is called NAME.py.")],
) -> None:
    """Write a strategy of your own: commented, lawful and running as it stands."""
    from offbeat.cli.terminal import say

    path = _named(name, ".py", "a strategy", "cosbuff")
    called = _class_name(path.stem)
    text = Path(__file__).with_name("starting_strategy.py").read_text(encoding="utf-8")
    _write(path, text.replace("CLASS", called).replace("FILE", path.name))
    say(f"{path} is written: put your method in, then try it with")
    say(f"  offbeat check {path}")
    say(f"  offbeat compare quickstart --strategies fedbuff,{path}:{called}")


@app.command("experiment")
def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the experiment; the file is called NAME.yaml.")],
) -> None:
    """Write an experiment file: commented, and running as it stands."""
    from offbeat.cli.experiment_template import TEXT
    from offbeat.cli.terminal import say

    path = _named(name, ".yaml", "an experiment", "study")
    _write(path, TEXT.replace("NAME", path.stem).replace("THIS", path.name))
    say(f"{path} is written: change what you like, then")
    say(f"  offbeat run {path}")


def _named(name: str, suffix: str, what: str, such_as: str) -> Path:
    from offbeat.core.errors import ConfigError

    path = Path(name if name.endswith(suffix) else f"{name}{suffix}")
    if path.suffix != suffix or not re.fullmatch(r"\w[\w .-]*", path.stem):
        raise ConfigError(f"{what}'s name is letters, digits, '-', '_' and '.', such as {such_as}, not {name!r}")
    return path


def _class_name(stem: str) -> str:
    """cos-buff and cos_buff are CosBuff; CosBuff stays as it is."""
    words = [word for word in re.split(r"[^a-zA-Z0-9]+", stem) if word]
    joined = "".join(word[0].upper() + word[1:] for word in words)
    return joined if joined and joined[0].isalpha() else f"Method{joined}"


def _write(path: Path, text: str) -> None:
    """Never over what is there."""
    from offbeat.core.errors import ConfigError, RunError

    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} is there already: choose another name") from None
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
