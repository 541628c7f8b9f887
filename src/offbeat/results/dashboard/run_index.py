"""Index of the runs below a folder with their progress. It writes nothing and runs no user code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from offbeat.core.errors import OffbeatError
from offbeat.experiment import MANIFEST, Comparison
from offbeat.experiment.run import Run
from offbeat.experiment.spec import strategy_name
from offbeat.results.result_files import RESULT_MARKERS
from offbeat.results.run_follower import RunFollower, RunProgress

MAX_DEPTH = 4  # levels of subfolders


@dataclass(frozen=True)
class IndexEntry:
    """A run, or a comparison with its runs."""

    name: str  # path relative to the root; requests use it
    folder: Path
    runs: list[IndexEntry] | None = None  # None: it is a single run
    label: str = ""  # the method
    seed: int | None = None
    progress: RunProgress | None = None
    error: str | None = None  # reason why it cannot be read

    @property
    def all_runs(self) -> list[IndexEntry]:
        """Return the run itself, or the runs of the comparison."""
        return [self] if self.runs is None else self.runs

    @property
    def state(self) -> str:
        """Return the state of the run; of a comparison, the one that is most important to know."""
        if self.error is not None:
            return "damaged"
        states = {run.progress.state if run.progress else "damaged" for run in self.all_runs}
        if states == {"not begun", "ended"}:
            return "stopped"
        order = ("going on", "damaged", "stopped", "not begun", "ended")
        return next((state for state in order if state in states), "damaged")

    @property
    def share(self) -> float:
        """Return the share of the run, or of all runs, that is done."""
        return sum(run.progress.share if run.progress else 0.0 for run in self.all_runs) / max(1, len(self.all_runs))


@dataclass
class RunIndex:
    """Find and read the runs on each request, but of each trace only new rows."""

    root: Path
    _followers: dict[Path, tuple[RunFollower, str, int]] = field(default_factory=dict)  # with strategy and seed
    # finished runs, with the modification time of their model
    _ended: dict[Path, tuple[float, RunProgress]] = field(default_factory=dict)

    def entries(self) -> list[IndexEntry]:
        """Return all entries, newest first."""
        changed = {
            folder: max(map(_modified, (folder, folder / "run.sqlite", folder / "lock")))
            for folder in _find_folders(self.root, MAX_DEPTH)
        }
        return [self._read_entry(folder) for folder in sorted(changed, key=changed.__getitem__, reverse=True)]

    def entries_by_name(self) -> dict[str, IndexEntry]:
        """Return all entries by name, including the runs of comparisons."""
        entries = self.entries()
        return {entry.name: entry for entry in [*entries, *(run for each in entries for run in each.runs or ())]}

    def _read_entry(self, folder: Path) -> IndexEntry:
        """Read a run, or a comparison with its runs."""
        if not (folder / MANIFEST).is_file():
            return self._read_run(folder)
        name = folder.relative_to(self.root).as_posix()
        try:
            layout = Comparison(folder).layout()
        except OffbeatError as error:
            return IndexEntry(name, folder, [], error=str(error))
        return IndexEntry(name, folder, [self._read_run(folder / e["folder"], e["strategy"]) for e in layout])

    def _read_run(self, folder: Path, label: str = "") -> IndexEntry:
        """Read the progress of a run; a finished run is read again only if its model has changed."""
        name = folder.relative_to(self.root).as_posix()
        try:
            if folder not in self._followers:
                run = Run(folder)
                experiment = run.experiment()
                self._followers[folder] = RunFollower(run), strategy_name(experiment), experiment.seed
            follower, strategy, seed = self._followers[folder]
            written = _modified(follower.run.model_file)
            ended_at, progress = self._ended.get(folder, (None, None))
            if progress is None or ended_at != written:
                progress = follower.read_progress()
            if progress.state == "ended":
                self._ended[folder] = written, progress
            return IndexEntry(name, folder, None, label or strategy, seed, progress)
        except (OffbeatError, OSError) as error:
            self._followers.pop(folder, None)
            return IndexEntry(name, folder, None, label, error=str(error))


def _find_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of runs and comparisons, without following links or descending into them."""
    if any((folder / marker).is_file() for marker in RESULT_MARKERS):
        yield folder
        return
    try:
        paths = sorted(folder.iterdir()) if depth else []
    except OSError:
        return
    for path in paths:
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            yield from _find_folders(path, depth - 1)


def _modified(path: Path) -> float:
    """Return when a file was last written; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
