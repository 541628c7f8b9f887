"""An entry of a paper with what the store has for it: measured and judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from offbeat.core.errors import OffbeatError, RunError
from offbeat.experiment import checksummed_json
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.preset import Preset
from offbeat.experiment.run import identity
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import to_plain
from offbeat.metrics.trace_summary import Summary
from offbeat.papers import measured_values
from offbeat.papers.entries import Entry
from offbeat.papers.measured_values import Found, Measured
from offbeat.papers.run_store import Store, World, experiments
from offbeat.papers.verdict import Judged, judge

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Shelf:
    """What the store has of one preset, at the size that a page shows."""

    world: World
    comparison: Comparison

    @cached_property
    def preset(self) -> Preset:
        return self.world.load()

    @cached_property
    def found(self) -> Found:
        """What came out, by method and seed."""
        made: dict[str, dict[int, Summary]] = {}
        for method, seed, _, summary in self._read[0]:
            made.setdefault(method, {})[seed] = summary
        return made

    @property
    def finished(self) -> list[tuple[str, int, Run]]:
        return [(method, seed, run) for method, seed, run, _ in self._read[0]]

    @property
    def left(self) -> list[str]:
        """Which finished runs are not shown, and why."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[list[tuple[str, int, Run, Summary]], list[str]]:
        """A manifest is believed only where the run itself says the same."""
        expected, read, left = experiments(self.preset), [], []
        for entry, run in self.comparison.entries():
            if not run.complete:
                continue
            method, seed = entry["strategy"], entry["seed"]
            try:
                given = run.experiment()
                if method not in expected or replace(expected[method], seed=seed) != given:
                    raise RunError(f"{run.folder}: {self._differs(given, expected.get(method), method, seed)}")
                read.append((method, seed, run, run.summary()))
            except OffbeatError as error:
                left.append(str(error))
        return read, left

    def _differs(self, given: Experiment, expected: Experiment | None, method: str, seed: int) -> str:
        if expected is None:
            return f"{self.world.preset} has no method {method!r} now"
        found = identity.changes("", to_plain(given), to_plain(replace(expected, seed=seed)))
        told = ", ".join(islice(found, 3))
        return f"it is not {method}, seed {seed}, of {self.world.preset}, {self.world.label}, as that is now: {told}"

    @property
    def missing(self) -> list[tuple[str, int]]:
        """Which methods lack seeds that others have."""
        seeds = sorted({seed for given in self.found.values() for seed in given})
        return [(name, seed) for name in self.preset.methods for seed in seeds if seed not in self.found.get(name, {})]

    @property
    def slowest_missing(self) -> bool:
        """Where runs end at a target the quick are done first: without the others a mean is of the quick."""
        return self.world.ends_at_target and bool(self.missing)

    @property
    def seeds(self) -> int:
        """Of the method that has the fewest."""
        return min(map(len, self.found.values()), default=0)

    def environments(self) -> list[dict[str, Any]]:
        """What runs were made with, each once."""
        made = []
        for _, _, run in self.finished:
            try:
                given = checksummed_json.read(run.folder / "environment.json")
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
    left: tuple[str, ...] = ()  # runs that are not shown: why

    @property
    def verdict(self) -> str:
        if self.judged is not None:
            return self.judged.verdict
        return f"a study of its own: {self.entry.apart}" if self.entry.apart else NOT_RUN

    @property
    def size(self) -> str:
        return "–" if self.shelf is None else self.shelf.world.label


def look(entries: Iterable[Entry], store: Store) -> list[Looked]:
    worlds, shelves = store.worlds(), dict[World, Shelf]()
    made = []
    for entry in entries:
        best = store.best(entry.preset, entry.quantity.key, worlds) if entry.preset is not None else None
        shelf = shelves.setdefault(best[0], Shelf(*best)) if best is not None else None
        if shelf is None or not shelf.finished:
            made.append(Looked(entry, left=tuple(shelf.left) if shelf else ()))
            continue
        values = measured_values.measure(entry.quantity, shelf.comparison, shelf.found, shelf.preset.reference)
        size = shelf.world.paper_size(entry.quantity.key)
        judged = judge(entry, values.values, size, shelf.world.other_data, values.bounds.keys(), shelf.slowest_missing)
        made.append(Looked(entry, shelf, values, judged, tuple(shelf.left)))
    return made
