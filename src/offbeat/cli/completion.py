"""What a shell offers at the tab key ('offbeat --install-completion'). The names stand in names.txt: to ask the
registries for them takes an import of torch, which is too long to wait for at a prompt. A test keeps the file right.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

FILE = Path(__file__).parent / "names.txt"


def known() -> dict[str, list[str]]:
    """Kind -> names, in their order."""
    lines = (line.split() for line in FILE.read_text(encoding="utf-8").splitlines())
    return {kind: names for kind, *names in lines}


def kinds(incomplete: str) -> list[str]:
    return [kind for kind in known() if kind.startswith(incomplete)]


def names_of_kind(ctx: typer.Context, incomplete: str) -> list[str]:
    return [name for name in known().get(ctx.params.get("what") or "", []) if name.startswith(incomplete)]


def sources(incomplete: str) -> list[str]:
    """Presets, then experiment files and folders."""
    presets = [name for name in known()["presets"] if name.startswith(incomplete)]
    return [*presets, *_files(incomplete)]


def _files(incomplete: str) -> Iterator[str]:
    typed = Path(incomplete)
    home, start = (typed, "") if incomplete.endswith("/") else (typed.parent, typed.name)
    if not home.is_dir():
        return
    for path in sorted(home.iterdir()):
        if path.name.startswith(start) and not path.name.startswith("."):
            if path.is_dir():
                yield f"{path}/"
            elif path.suffix in (".yaml", ".yml"):
                yield str(path)


def strategies(incomplete: str) -> list[str]:
    """One, or several with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in known()["strategies"] if name.startswith(last)]
