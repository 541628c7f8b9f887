"""An entry of a paper with what the store has for it: measured and judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from offbeat.core.errors import RunError
from offbeat.evidence import measured
from offbeat.evidence.measured import Found, Measured
from offbeat.evidence.published import Entry
from offbeat.evidence.store import Store, World
from offbeat.evidence.verdict import Judged, judge
from offbeat.experiment import sealed
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run import Run
from offbeat.presets import Preset

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Shelf:
    """What the store has of one preset, at the size that a page shows."""

    world: World
    comparison: Comparison

    @cached_property
    def found(self) -> Found:
        return self.comparison.finished()

    @cached_property
    def preset(self) -> Preset:
        return self.world.load()

    @cached_property
    def finished(self) -> list[tuple[str, int, Run]]:
        return [(e["strategy"], e["seed"], run) for e, run in self.comparison.entries() if run.complete]

    @property
    def seeds(self) -> int:
        """Of the method that has the fewest."""
        return min(map(len, self.found.values()), default=0)

    def environments(self) -> list[dict[str, Any]]:
        """What runs were made with, each once."""
        made = []
        for _, _, run in self.finished:
            try:
                given = sealed.read(run.folder / "environment.json")
            except (FileNotFoundError, RunError):
                continue
            if given not in made:
                made.append(given)
        return made


@dataclass(frozen=True)
class Looked:
    """One entry; without a shelf it was not run."""

    entry: Entry
    shelf: Shelf | None = None
    measured: Measured | None = None
    judged: Judged | None = None

    @property
    def verdict(self) -> str:
        return NOT_RUN if self.judged is None else self.judged.verdict

    @property
    def size(self) -> str:
        return "–" if self.shelf is None else self.shelf.world.label


def look(entries: Iterable[Entry], store: Store) -> list[Looked]:
    worlds, shelves = store.worlds(), dict[str, Shelf | None]()
    made = []
    for entry in entries:
        if entry.preset is not None and entry.preset not in shelves:
            best = store.best(entry.preset, worlds)
            shelves[entry.preset] = Shelf(*best) if best is not None else None
        shelf = shelves.get(entry.preset or "")
        if shelf is None or not shelf.finished:
            made.append(Looked(entry))
            continue
        values = measured.measure(entry.quantity, shelf.comparison, shelf.found)
        judged = judge(entry, values.values, shelf.world.paper_size(entry.quantity.key), shelf.world.stand_in)
        made.append(Looked(entry, shelf, values, judged))
    return made
