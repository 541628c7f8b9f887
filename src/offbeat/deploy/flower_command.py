"""Run one of Flower's commands with this Python: python -m offbeat.deploy.flower_command flower-superlink --help.

A site runs no code that came from the server. Flower installs the received app below FLWR_HOME, and offbeat's app
holds only a configuration. An audit hook stops any other code from there before Python runs it.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import distribution


def refuse_shipped_code(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse, as an audit hook, to run code of an app that the server sent; a process cannot remove its hooks."""
    if event == "exec" and (home := os.environ.get("FLWR_HOME")):
        name = getattr(arguments[0], "co_filename", "")
        apps = os.path.realpath(os.path.join(home, "apps")) + os.sep
        if isinstance(name, str) and os.path.realpath(name).startswith(apps):
            raise RuntimeError(f"the server sent code ({os.path.basename(name)}): a site runs only its own code")


def main() -> None:
    """Run the command named by the first argument with the arguments that follow."""
    name = sys.argv[1]
    sys.argv[:2] = [name]
    if name == "flwr-clientapp":
        sys.addaudithook(refuse_shipped_code)
    command = next(e for e in distribution("flwr").entry_points if e.group == "console_scripts" and e.name == name)
    sys.exit(command.load()())


if __name__ == "__main__":
    main()
