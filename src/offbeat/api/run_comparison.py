"""`compare` runs several methods and seeds on your own model and data; `Compared` is its result."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Unpack

from torch import nn

from offbeat.api import arguments, progress_line
from offbeat.api.progress_line import Shares
from offbeat.api.run_simulation import RESUME_HINT, load_simulation
from offbeat.api.simulation_result import Simulation, current_command
from offbeat.api.world_options import Clients, WorldKeywords, WorldOptions, accept_world_options
from offbeat.core.errors import ConfigError, RunError, unknown_name
from offbeat.core.protocol import Strategy
from offbeat.experiment import DEFAULT_REFERENCE, MANIFEST, Comparison, RunEntry, create_comparison, execute_comparison
from offbeat.experiment.run import JsonObject, Run, Unfinished, parse_memory_limit
from offbeat.experiment.scripted import RETRY_HINT, ScriptedRun
from offbeat.experiment.spec import name_of
from offbeat.metrics import measure_table, summary_json
from offbeat.results import PAGE, PAGE_SUFFIX, draw_figure_or_page, read_report, write_report
from offbeat.workers import parse_worker

log = logging.getLogger("offbeat")


@dataclass(frozen=True, repr=False)
class Compared(Comparison):
    """The result of `compare`: print it for the table, plot it, write its page, or take one of its simulations."""

    given: Mapping[tuple[str, int], ScriptedRun] = field(default_factory=dict)  # by method and seed
    _keeps: tempfile.TemporaryDirectory[str] | None = None  # removed together with this object

    def run(self, entry: RunEntry) -> Run:
        """Return one run of the layout."""
        return Run(self.folder / entry["folder"], self.given.get((entry["strategy"], entry["seed"])))

    @property
    def complete(self) -> bool:
        """Tell whether all runs are complete."""
        return all(self.run(entry).complete for entry in self.layout())

    @property
    def seeds(self) -> list[int]:
        """List the seeds."""
        return list(dict.fromkeys(entry["seed"] for entry in self.layout()))

    def __getitem__(self, method: str) -> dict[int, Simulation]:
        """Return the simulations of a method by seed."""
        if method not in self.strategies():
            raise unknown_name("method of this comparison", str(method), self.strategies())
        return {
            entry["seed"]: load_simulation(self.run(entry)) for entry in self.layout() if entry["strategy"] == method
        }

    def __iter__(self) -> Iterator[str]:
        """Iterate over the labels of the methods."""
        return iter(self.strategies())

    def __len__(self) -> int:
        """Return the number of methods."""
        return len(self.strategies())

    def table(self, by_seed: bool = False) -> list[JsonObject]:
        """Return one dict per method with means over seeds, or one per run if `by_seed`.

        The keys are those of `offbeat show --json`. The values are plain, ready for a data frame.
        """
        if not by_seed:
            return [row.as_json() for row in self.rows()]
        return [
            {"strategy": entry["strategy"], "seed": entry["seed"], **summary_json(self.run(entry).summary())}
            for entry in self.layout()
        ]

    def plot(self, path: str | Path, kind: str = "all") -> Path:
        """Draw the figure of the comparison; the suffix of the path selects the format (png, pdf, svg)."""
        draw_figure_or_page(self, Path(path), kind)
        return Path(path)

    def page(self, path: str | Path, reference: str | None = None) -> Path:
        """Write one self-contained HTML page."""
        if Path(path).suffix.lower() != PAGE_SUFFIX:
            raise ConfigError(f"{path}: the name of a page ends in {PAGE_SUFFIX}")
        draw_figure_or_page(self, Path(path), reference=reference)
        return Path(path)

    def save(self, folder: str | Path) -> Path:
        """Write the folder that `out=` would have created."""
        path = arguments.check_folder(folder)
        if path.exists() and any(path.iterdir()):
            raise ConfigError(f"{path} is not empty: choose another folder")
        try:
            shutil.copytree(self.folder, path, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise RunError(f"cannot write to {path}: {getattr(error, 'strerror', None) or error}") from None
        return path

    def __str__(self) -> str:
        """Return the table that 'offbeat compare' prints."""
        content = read_report(self)
        warnings = [f"warning: {row.strategy}, {line}" for row in content.rows for line in row.warnings]
        return "\n".join([*_align_columns(measure_table(content.rows, content.target)), *warnings])

    __repr__ = __str__


def _align_columns(rows: list[list[str]]) -> list[str]:
    """Pad the cells of a table, with the first column on the left and numbers on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]
    return ["  ".join(row).rstrip() for row in padded]


@accept_world_options(before="reference")
def compare(
    model: nn.Module | Callable[[int], nn.Module],
    clients: Clients,
    strategies: Mapping[str, Strategy | str] | Sequence[Strategy | str],
    *,
    seeds: int | Sequence[int] = 3,
    reference: str | None = None,
    name: str = "comparison",
    worker: str = "inline",
    jobs: int | None = None,
    client_memory: str | None = None,
    progress: bool | Callable[[Shares], object] = False,
    out: str | Path | None = None,
    **options: Unpack[WorldKeywords],
) -> Compared:
    """Run several methods with the same clients, delays and seeds, and collect the results in one table.

    A seed decides batches, job durations, availability and faults in the same way for all methods. The clients' data
    is the same for all seeds.

    model: A module, for the same initial weights in all runs, or a function of the seed, for weights that depend on
        it: in lambda seed: Net(), the generators of torch are seeded for each call.
    clients: As in `offbeat.simulate`.
    strategies: Strategies or their names, or a mapping from labels to them.
    seeds: How many seeds, from 0, or a list of seeds.
    reference: The method that speed-ups are relative to, by default fedavg or else the first.
    name, worker, client_memory: As in `offbeat.simulate`.
    jobs: Number of runs at a time, by default one per core.
    progress: True for a line on stderr, or a function that is called with the finished share of each run, by
        (method, seed).
    out: A folder for the results, which 'offbeat show' reads. The same call with the same `out` completes unfinished
        runs and repeats no finished one; a different call is rejected.
    """
    methods, numbers = _check_methods(strategies), _check_seeds(seeds)
    if reference is not None and reference not in methods:
        raise unknown_name("method of this comparison", str(reference), methods)
    jobs = None if jobs is None else arguments.check_whole(jobs, "jobs", 1)
    worker = str(parse_worker(arguments.check_text(worker, "worker", "processes:4")))
    memory = None if client_memory is None else arguments.check_text(client_memory, "client_memory", "8GB")
    if memory is not None:
        parse_memory_limit(memory)
    modules = {seed: arguments.build_model(model, seed) for seed in numbers}
    scripts = WorldOptions(**options).build_runs(name, clients, methods, modules)
    temporary = tempfile.TemporaryDirectory(prefix="offbeat-") if out is None else None
    folder = arguments.check_folder(out) if out is not None else Path(temporary.name)  # type: ignore[union-attr]
    comparison = Compared(folder, scripts, temporary)
    if (folder / MANIFEST).is_file():
        _check_same_call(comparison)
    else:
        for script in scripts.values():
            script.setup()  # reject what cannot be built before a folder is created
        experiments = {label: scripts[label, numbers[0]].experiment for label in methods}
        create_comparison(
            folder,
            experiments,
            numbers,
            reference or DEFAULT_REFERENCE,
            worker,
            memory,
            scripts=scripts,
            command=current_command(),
        )
    was_complete = comparison.complete
    if not was_complete:
        _execute(comparison, jobs, worker, memory, progress)
    if out is not None and not (was_complete and (folder / PAGE).is_file()):
        write_report(comparison, reference)
    return comparison


def _execute(
    comparison: Compared, jobs: int | None, worker: str, memory: str | None, progress: bool | Callable[[Shares], object]
) -> None:
    """Finish all runs; raise KeyboardInterrupt if they were interrupted."""
    pairs = [(entry["strategy"], entry["seed"]) for entry in comparison.layout()]
    finished = False
    try:
        with progress_line.watch_comparison(progress, pairs) as watch, contextlib.suppress(KeyboardInterrupt):
            finished = execute_comparison(comparison, jobs, watch, worker, memory)
    except Unfinished as error:
        raise RunError(f"{error}. {RESUME_HINT}") from None
    if not finished:
        raise KeyboardInterrupt(f"stopped. {RESUME_HINT}" if comparison._keeps is None else "stopped")


def _check_same_call(comparison: Compared) -> None:
    """Reject a folder that a different call created."""
    stored = [(entry["strategy"], entry["seed"]) for entry in comparison.layout()]
    for what, index in (("the methods", 0), ("the seeds", 1)):
        before, now = (
            [str(key) for key in dict.fromkeys(pair[index] for pair in pairs)] for pairs in (stored, comparison.given)
        )
        if before != now:
            change = f"{what} were {', '.join(before)}, are {', '.join(now)} now"
            raise RunError(f"{comparison.folder} was made by another call: {change}; {RETRY_HINT}")
    differences = []
    for entry in comparison.layout():
        comparison.run(entry).check_unchanged()
        differences.append(comparison.run(entry).machine_difference())
    for difference in dict.fromkeys(filter(None, differences)):
        log.warning("%s: for %d runs, %s", comparison.folder, differences.count(difference), difference)


def _check_methods(strategies: Mapping[str, Strategy | str] | Sequence[Strategy | str]) -> dict[str, Strategy]:
    """Return the strategies by label."""
    if isinstance(strategies, Mapping):
        methods = {_check_label(label): arguments.check_strategy(value) for label, value in strategies.items()}
    elif isinstance(strategies, (list, tuple)):
        methods = _label_by_name([arguments.check_strategy(value) for value in strategies])
    else:
        value = arguments.format_value(strategies)
        raise ConfigError(f"strategies = {value}: pass a list of strategies, or a dict of label: strategy")
    if not methods:
        raise ConfigError("a comparison needs at least one strategy")
    return methods


def _label_by_name(strategies: list[Strategy]) -> dict[str, Strategy]:
    """Label strategies by name; if a name occurs more than once, append the settings that are not defaults."""
    names = [name_of("strategy", strategy) for strategy in strategies]
    labels = [
        name if names.count(name) == 1 else f"{name}{_changed_settings(strategy)}"
        for name, strategy in zip(names, strategies, strict=True)
    ]
    duplicate = next((label for label in labels if labels.count(label) > 1), None)
    if duplicate is not None:
        raise ConfigError(f"strategies: {duplicate} occurs twice: pass a dict to give each its own label")
    return dict(zip(labels, strategies, strict=True))


def _changed_settings(strategy: Strategy) -> str:
    """Format the settings of a strategy that are not defaults, such as ``(k=2,lr=0.5)``."""
    if not is_dataclass(strategy):
        return ""
    with contextlib.suppress(TypeError):  # raised for strategies with required settings
        default = type(strategy)()
        values = {f.name: getattr(strategy, f.name) for f in fields(strategy) if f.init}
        changed = ",".join(f"{key}={value}" for key, value in values.items() if value != getattr(default, key))
        return f"({changed})" if changed else ""
    return ""


def _check_label(label: object) -> str:
    """Return a label; raise ConfigError if it is unsuitable for tables and folder names."""
    if not isinstance(label, str) or label.strip() != label or not label.isprintable() or "/" in label:
        raise ConfigError(f"strategies: {label!r} is no valid label: write a short text without /")
    if not label or label.startswith("."):
        raise ConfigError(f"strategies: {label!r} is no valid label: it must not be empty or begin with a dot")
    return label


def _check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return the list of seeds; a number stands for that many seeds from 0."""
    if isinstance(seeds, (list, tuple, range)):
        numbers = [arguments.check_whole(seed, "seeds") for seed in seeds]
        if not numbers:
            raise ConfigError("a comparison needs at least one seed")
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"seeds = {arguments.format_value(seeds)}: a seed occurs twice")
        return numbers
    return list(range(arguments.check_whole(seeds, "seeds", 1)))
