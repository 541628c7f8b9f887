"""Runs one of Flower's commands with this Python, wherever its scripts lie: python -m offbeat.deploy.flower_command
flower-superlink --help.

A site executes no file that came from the server: Flower installs the app it was sent below FLWR_HOME, and ours has
only a configuration in it. Whatever else lies there is refused when Python is about to run it.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import distribution
from typing import Any


def refuse_shipped_code(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: it cannot be taken away again within the process."""
    if event == "exec" and (home := os.environ.get("FLWR_HOME")):
        name = getattr(arguments[0], "co_filename", "")
        apps = os.path.realpath(os.path.join(home, "apps")) + os.sep
        if isinstance(name, str) and os.path.realpath(name).startswith(apps):
            raise RuntimeError(f"the server sent code ({os.path.basename(name)}): a site runs only what it has itself")


def main() -> None:
    name = sys.argv[1]
    sys.argv[:2] = [name]
    if name == "flwr-clientapp":
        sys.addaudithook(refuse_shipped_code)
    command = next(e for e in distribution("flwr").entry_points if e.group == "console_scripts" and e.name == name)
    sys.exit(command.load()())


if __name__ == "__main__":
    main()
