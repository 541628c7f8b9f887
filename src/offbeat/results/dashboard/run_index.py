"""The runs below a folder, and how each of them stands. Nothing is written, no code of anybody's is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from offbeat.core.errors import OffbeatError
from offbeat.experiment.comparison import MANIFEST, Comparison
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec.config import strategy_name
from offbeat.results.result_files import PARTS
from offbeat.results.run_follower import Follower, Look

DEEP = 4  # folders below the one that is shown


@dataclass(frozen=True)
class Entry:
    """One run, or one comparison with its runs."""

    name: str  # its path below the folder: what it is asked for by
    folder: Path
    runs: list[Entry] | None = None  # of a comparison
    label: str = ""  # the method
    seed: int | None = None
    look: Look | None = None
    wrong: str | None = None  # why it cannot be read

    @property
    def each(self) -> list[Entry]:
        return [self] if self.runs is None else self.runs

    @property
    def state(self) -> str:
        if self.wrong is not None:
            return "damaged"
        states = [run.look.state if run.look else "damaged" for run in self.each]
        order = ("going on", "damaged", "stopped", "not begun", "ended")
        first = next((state for state in order if state in states), "damaged")
        begun = first == "not begun" and "ended" in states
        return "stopped" if begun else first

    @property
    def share(self) -> float:
        return sum(run.look.share if run.look else 0.0 for run in self.each) / max(1, len(self.each))


@dataclass
class Store:
    """Looks again whenever it is asked; of a run only at what is new."""

    root: Path
    _followers: dict[Path, tuple[Follower, str, int]] = field(default_factory=dict)
    _ended: dict[Path, tuple[float, Look]] = field(default_factory=dict)  # by when the model was written

    def entries(self) -> list[Entry]:
        """Newest first."""
        found = sorted(_below(self.root, DEEP), key=_changed, reverse=True)
        return [self._entry(folder) for folder in found]

    def known(self) -> dict[str, Entry]:
        """Whatever can be asked for, by name: a name that is not here is nothing."""
        top = self.entries()
        return {entry.name: entry for entry in [*top, *(run for each in top for run in each.runs or ())]}

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self.root).as_posix()

    def _entry(self, folder: Path) -> Entry:
        if not (folder / MANIFEST).is_file():
            return self._run(folder)
        name = self._name(folder)
        try:
            layout = Comparison(folder).layout()
        except OffbeatError as error:
            return Entry(name, folder, [], wrong=str(error))
        return Entry(name, folder, [self._run(folder / e["folder"], e["strategy"]) for e in layout])

    def _run(self, folder: Path, label: str = "") -> Entry:
        name = self._name(folder)
        try:
            if folder not in self._followers:
                run = Run(folder)
                experiment = run.experiment()
                self._followers[folder] = Follower(run), strategy_name(experiment), experiment.seed
            follower, strategy, seed = self._followers[folder]
            return Entry(name, folder, None, label or strategy, seed, self._look(folder, follower))
        except (OffbeatError, OSError) as error:
            self._followers.pop(folder, None)
            return Entry(name, folder, None, label, wrong=str(error))

    def _look(self, folder: Path, follower: Follower) -> Look:
        written = _time(follower.run.model_file)
        kept = self._ended.get(folder)
        if kept is not None and kept[0] == written:
            return kept[1]
        look = follower.look()
        if look.state == "ended":
            self._ended[folder] = written, look
        return look


def _below(folder: Path, deep: int) -> Iterator[Path]:
    """Runs and comparisons; no link is followed, and what lies in one is its own."""
    if any((folder / part).is_file() for part in PARTS):
        yield folder
        return
    try:
        inside = sorted(folder.iterdir()) if deep else []
    except OSError:
        return
    for path in inside:
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            yield from _below(path, deep - 1)


def _changed(folder: Path) -> float:
    return max(map(_time, (folder, folder / "run.sqlite", folder / "lock")))


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
