"""offbeat show --figure: a figure or a page of a run or a comparison, as far as it is."""

from __future__ import annotations

from pathlib import Path


def draw(folder: Path, figure: Path, kind: str) -> None:
    from offbeat.cli.output import say
    from offbeat.core.errors import RunError
    from offbeat.experiment import pictures
    from offbeat.experiment.comparison import MANIFEST, Comparison
    from offbeat.experiment.run import Run

    try:
        pictures.draw(Comparison(folder) if (folder / MANIFEST).is_file() else Run(folder), figure, kind)
    except OSError as error:
        raise RunError(f"cannot write {figure}: {error.strerror or error}") from None
    say(f"figure: {figure}")
