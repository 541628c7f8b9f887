"""offbeat show --figure: a figure or a page of a run or a comparison, as far as it is."""

from __future__ import annotations

from pathlib import Path


def draw(folder: Path, figure: Path, kind: str, reference: str | None = None) -> None:
    from offbeat.cli.terminal import say
    from offbeat.core.errors import ConfigError, RunError
    from offbeat.experiment.comparison import MANIFEST, Comparison
    from offbeat.experiment.run.execution import Run
    from offbeat.results import pictures

    several = (folder / MANIFEST).is_file()
    if reference is not None and not several:
        raise ConfigError(f"--reference {reference}: {folder} is one run, there is nothing to compare it with")
    try:
        pictures.draw(Comparison(folder) if several else Run(folder), figure, kind, reference)
    except OSError as error:
        raise RunError(f"cannot write {figure}: {error.strerror or error}") from None
    say(f"figure: {figure}")
