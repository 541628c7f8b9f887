"""The command `offbeat new`: write a file to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.terminal import say
from offbeat.core.errors import ConfigError, RunError


def new_site(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site; the file is NAME.py.")],
) -> None:
    """Write a commented, working site file with a model and data."""
    path = _file_path(name, ".py", "a site", "hospital-a")
    _write_new_file(path, render_template("site.py.txt", NAME=path.stem, FILE=path.name))
    _say_next(path, "insert your model and data, then check it", f"offbeat join --check --data {path}")


def new_strategy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the method; the file is NAME.py.")],
) -> None:
    """Write a commented, working strategy that keeps all laws."""
    path = _file_path(name, ".py", "a strategy", "cosbuff")
    class_name = _class_name(path.stem)
    _write_new_file(path, render_template("strategy.py.txt", CLASS=class_name, FILE=path.name))
    compare = f"offbeat compare quickstart --strategies fedbuff,{path}:{class_name}"
    _say_next(path, "insert your method, then try it", f"offbeat check {path}", compare)


def new_experiment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the experiment; the file is NAME.yaml.")],
) -> None:
    """Write a commented, working experiment file."""
    path = _file_path(name, ".yaml", "an experiment", "study")
    _write_new_file(path, render_template("experiment.yaml", NAME=path.stem, FILE=path.name))
    _say_next(path, "change settings as needed, then run it", f"offbeat run {path}")


def render_template(template: str, **values: str) -> str:
    """Return the text of a template with its placeholders, words in capitals, replaced."""
    text = Path(__file__).with_name("templates").joinpath(template).read_text(encoding="utf-8")
    return re.sub(rf"\b({'|'.join(values)})\b", lambda match: values[match[0]], text)


def _say_next(path: Path, step: str, *commands: str) -> None:
    """Print the next step and the commands for it."""
    say(f"{path} is written: {step} with")
    for command in commands:
        say(f"  {command}")


def _file_path(name: str, suffix: str, kind: str, example: str) -> Path:
    """Return the path of a new file, or reject a name that is unsuitable; `kind` and `example` are for the message."""
    path = Path(name if name.endswith(suffix) else f"{name}{suffix}")
    if path.suffix != suffix or not re.fullmatch(r"\w[\w .-]*", path.stem):
        raise ConfigError(
            f"{kind}'s name consists of letters, digits, '-', '_' and '.', for example {example}; got {name!r}"
        )
    return path


def _class_name(stem: str) -> str:
    """Derive a class name: cos-buff and cos_buff become CosBuff; CosBuff does not change."""
    words = [word for word in re.split(r"[^a-zA-Z0-9]+", stem) if word]
    joined = "".join(word[0].upper() + word[1:] for word in words)
    return joined if joined and joined[0].isalpha() else f"Method{joined}"


def _write_new_file(path: Path, text: str) -> None:
    """Write a new file; never overwrite an existing one."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} already exists: choose another name") from None
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None


COMMANDS = {"site": new_site, "strategy": new_strategy, "experiment": new_experiment}
