"""The Python door to a comparison: several methods and seeds on your own model and data, in one call."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from offbeat.api import arguments, progress_line
from offbeat.api.progress_line import Shares
from offbeat.api.run_simulation import WHOLE, loaded
from offbeat.api.simulation_result import Simulation, called_by
from offbeat.api.world_options import asked
from offbeat.core.errors import ConfigError, RunError, unknown_name
from offbeat.core.protocol import Strategy
from offbeat.engine.until import Target, Until
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import DEFAULT_REFERENCE, MANIFEST, Comparison
from offbeat.experiment.run import client_memory as memories
from offbeat.experiment.run import execution as runs
from offbeat.experiment.scripted.client_datasets import Examples
from offbeat.experiment.scripted.scripted_run import RETRY_HINT, ScriptedRun
from offbeat.experiment.spec.choices import name_of
from offbeat.metrics import measures
from offbeat.results import report
from offbeat.results import report as pictures
from offbeat.scenario.availability import Availability
from offbeat.scenario.delays import Delays
from offbeat.scenario.faults import Fault
from offbeat.scenario.network import Network
from offbeat.scenario.streaming import Stream
from offbeat.training.tasks import Loss, Task
from offbeat.training.trainer import Training
from offbeat.workers import registry

log = logging.getLogger("offbeat")


@dataclass(frozen=True, repr=False)
class Compared(Comparison):
    """What came out of `compare`: print it for the table, plot it, make its page, take one of its simulations."""

    given: Mapping[tuple[str, int], ScriptedRun] = field(default_factory=dict)  # (method, seed) -> what was played
    _keeps: Any = None  # the temporary folder, where no other was named: it goes with this

    def run(self, entry: Mapping[str, Any]) -> runs.Run:
        return runs.Run(self.folder / entry["folder"], self.given.get((entry["strategy"], entry["seed"])))

    @property
    def complete(self) -> bool:
        return all(self.run(entry).complete for entry in self.layout())

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(entry["seed"] for entry in self.layout()))

    def __getitem__(self, method: str) -> dict[int, Simulation]:
        """Of a method, the simulation of each seed."""
        if method not in self.strategies():
            raise unknown_name("method of this comparison", str(method), self.strategies())
        return {entry["seed"]: loaded(self.run(entry)) for entry in self.layout() if entry["strategy"] == method}

    def __iter__(self) -> Iterator[str]:
        return iter(self.strategies())

    def __len__(self) -> int:
        return len(self.strategies())

    def table(self, by_seed: bool = False) -> list[dict[str, Any]]:
        """A dict a method, of means over seeds, or `by_seed` one a run, of what `offbeat show --json` tells: plain
        values, ready for a data frame.
        """
        if not by_seed:
            return [row.as_json() for row in self.rows()]
        return [
            {"strategy": entry["strategy"], "seed": entry["seed"], **measures.summary_json(self.run(entry).summary())}
            for entry in self.layout()
        ]

    def plot(self, path: str | Path, kind: str = "all") -> Path:
        """The figure of the comparison; the ending of the path says in which format (png, pdf, svg)."""
        pictures.draw_figure_or_page(self, Path(path), kind)
        return Path(path)

    def page(self, path: str | Path, reference: str | None = None) -> Path:
        """One self-contained HTML page."""
        if Path(path).suffix.lower() != pictures.PAGE_SUFFIX:
            raise ConfigError(f"{path}: the name of a page ends in {pictures.PAGE_SUFFIX}")
        pictures.draw_figure_or_page(self, Path(path), reference=reference)
        return Path(path)

    def save(self, folder: str | Path) -> Path:
        """The folder that out= would have made."""
        path = arguments.folder(folder)
        if path.exists() and any(path.iterdir()):
            raise ConfigError(f"{path} is not empty: choose another folder")
        try:
            shutil.copytree(self.folder, path, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise RunError(f"cannot write to {path}: {getattr(error, 'strerror', None) or error}") from None
        return path

    def __str__(self) -> str:
        """The table that 'offbeat compare' prints."""
        made = report.read_report(self)
        warnings = [f"warning: {row.strategy}, {line}" for row in made.rows for line in row.warnings]
        return "\n".join([*_aligned(measures.measure_table(made.rows, made.target)), *warnings])

    __repr__ = __str__


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]
    return ["  ".join(row).rstrip() for row in padded]


def compare(
    model: nn.Module | Callable[[int], nn.Module],
    clients: Sequence[Examples] | Mapping[str, Examples] | Mapping[int, Examples],
    strategies: Mapping[str, Strategy | str] | Sequence[Strategy | str],
    *,
    seeds: int | Sequence[int] = 3,
    delays: Delays | float | Sequence[float] | Mapping[str, float] = 60.0,
    network: Network | None = None,
    availability: Availability | None = None,
    faults: Fault | Sequence[Fault] = (),
    streaming: Stream | None = None,
    until: Until | str | float = "3600s",
    target: Target | str | None = None,
    test: Examples | None = None,
    tests: Sequence[Examples] | Mapping[str, Examples] | Mapping[int, Examples] | None = None,
    training: Training | None = None,
    loss: Task | Loss | None = None,
    evaluate_every: float | None = None,
    max_norm: float | None = None,
    reference: str | None = None,
    name: str = "comparison",
    worker: str = "inline",
    jobs: int | None = None,
    client_memory: str | None = None,
    progress: bool | Callable[[Shares], Any] = False,
    out: str | Path | None = None,
) -> Compared:
    """Several methods on the same clients, delays and seeds: one table.

    strategies: strategies or names of them, or a mapping that says what each is called. seeds: how many, from 0, or
    which. A seed decides how batches are drawn, how long each job takes, who is there and what goes wrong, alike for
    all methods; the clients' data is the same for all seeds, and so are the initial weights if `model` is a module. A
    function of the seed makes others for each: lambda seed: Net() draws from torch's generators as they are set for
    that seed. reference: whom speed-ups are against, by default fedavg or the first. jobs: runs at once, by default
    one a core. progress: True for a line on stderr, or a function that is given the share of each run that is done, by
    (method, seed). out: a folder, which 'offbeat show' reads. The same call with the same `out` again repeats no run
    that is finished and goes on with those that are not; another call is refused. All else is as in
    `offbeat.simulate`.
    """
    methods, numbers = _methods(strategies), _seeds(seeds)
    if reference is not None and reference not in methods:
        raise unknown_name("method of this comparison", str(reference), methods)
    jobs = None if jobs is None else arguments.whole(jobs, "jobs", 1)
    worker = str(registry.parse_worker(arguments.text(worker, "worker", "processes:4")))
    memory = None if client_memory is None else arguments.text(client_memory, "client_memory", "8GB")
    if memory is not None:
        memories.parse_memory_limit(memory)
    modules = {seed: arguments.modelled(model, seed) for seed in numbers}
    world = asked(
        modules[numbers[0]],
        clients,
        name=name,
        delays=delays,
        network=network,
        availability=availability,
        faults=faults,
        streaming=streaming,
        until=until,
        target=target,
        test=test,
        tests=tests,
        training=training,
        loss=loss,
        evaluate_every=evaluate_every,
        max_norm=max_norm,
    )
    given = {(label, seed): world.given(methods[label], seed, modules[seed]) for label in methods for seed in numbers}
    keeps = tempfile.TemporaryDirectory(prefix="offbeat-") if out is None else None
    folder = arguments.folder(out) if keeps is None else Path(keeps.name)
    made = Compared(folder, given, keeps)
    if (folder / MANIFEST).is_file():
        _check(made)
    else:
        for one in given.values():
            one.setup()  # what cannot be built is refused before a folder is made
        experiments = {label: given[label, numbers[0]].experiment for label in methods}
        against = reference or DEFAULT_REFERENCE
        comparing.create_comparison(
            folder, experiments, numbers, against, worker, memory, scripts=given, command=called_by()
        )
    finished = made.complete
    if not finished:
        _finish(made, jobs, worker, memory, progress)
    if out is not None and not (finished and (folder / report.PAGE).is_file()):  # killed before it had one
        report.write_report(made, reference)
    return made


def _finish(made: Compared, jobs: int | None, worker: str, memory: str | None, progress: Any) -> None:
    pairs = [(entry["strategy"], entry["seed"]) for entry in made.layout()]
    finished = False
    try:
        with progress_line.many_runs(progress, pairs) as watch, contextlib.suppress(KeyboardInterrupt):
            finished = comparing.execute_comparison(made, jobs, watch, worker, memory)
    except runs.Unfinished as error:
        raise RunError(f"{error}. {WHOLE}") from None
    if not finished:
        raise KeyboardInterrupt(f"stopped. {WHOLE}" if made._keeps is None else "stopped")


def _check(made: Compared) -> None:
    """Refuse a folder that another call made."""
    stored = [(entry["strategy"], entry["seed"]) for entry in made.layout()]
    for what, at in (("the methods", 0), ("the seeds", 1)):
        before, now = ([str(key) for key in dict.fromkeys(pair[at] for pair in keys)] for keys in (stored, made.given))
        if before != now:
            told = f"{what} were {', '.join(before)}, are {', '.join(now)} now"
            raise RunError(f"{made.folder} was made by another call: {told}; {RETRY_HINT}")
    moves = []
    for entry in made.layout():
        made.run(entry).check_unchanged()
        moves.append(made.run(entry).machine_difference())
    for moved in dict.fromkeys(filter(None, moves)):
        log.warning("%s: of %d runs, %s", made.folder, moves.count(moved), moved)


# ---------------------------------------------------------------- what is compared


def _methods(given: Any) -> dict[str, Strategy]:
    """By label."""
    if isinstance(given, Mapping):
        found = {_label(label): arguments.strategy(one) for label, one in given.items()}
    elif isinstance(given, (list, tuple)):
        found = _labelled([arguments.strategy(one) for one in given])
    else:
        shown = arguments.shown(given)
        raise ConfigError(f"strategies = {shown}: give a list of them, or a mapping of what to call them to them")
    if not found:
        raise ConfigError("a comparison needs at least one strategy")
    return found


def _labelled(several: list[Strategy]) -> dict[str, Strategy]:
    """By name; where a name is there twice, with the settings that are not the usual ones."""
    names = [name_of("strategy", one) for one in several]
    labels = [
        name if names.count(name) == 1 else f"{name}{_unusual(one)}" for name, one in zip(names, several, strict=True)
    ]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ConfigError(f"strategies: {twice} is there twice: a mapping says what to call each")
    return dict(zip(labels, several, strict=True))


def _unusual(strategy: Strategy) -> str:
    if not is_dataclass(strategy):
        return ""
    with contextlib.suppress(TypeError):  # some have settings that must be given
        usual = type(strategy)()
        pairs = [(f.name, getattr(strategy, f.name)) for f in fields(strategy) if f.init]
        told = ",".join(f"{key}={value}" for key, value in pairs if value != getattr(usual, key))
        return f"({told})" if told else ""
    return ""


def _label(given: Any) -> str:
    fine = isinstance(given, str) and given and given.strip() == given and given.isprintable() and "/" not in given
    if not fine or given.startswith("."):
        raise ConfigError(f"strategies: {given!r} is no label: write a short text, without / in it")
    return str(given)


def _seeds(given: Any) -> list[int]:
    if isinstance(given, (list, tuple, range)):
        numbers = [arguments.whole(seed, "seeds") for seed in given]
        if not numbers:
            raise ConfigError("a comparison needs at least one seed")
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"seeds = {arguments.shown(given)}: one is there twice")
        return numbers
    return list(range(arguments.whole(given, "seeds", 1)))
