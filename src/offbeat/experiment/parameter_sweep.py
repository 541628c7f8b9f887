"""A grid of settings, every combination of them for every method: `--over strategy.beta=0.2,0.4 --over partition=…`.

A sweep is a comparison whose labels are the combinations; its manifest says besides what each consists of. So it is
made, executed, resumed and pooled as a comparison is. A setting of the strategy is varied for the methods that have it;
the others stay as they are, one combination less, to compare with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError, RunError, printable
from offbeat.experiment import build, method_labels
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import MANIFEST, SWEEP, Comparison
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import call_syntax, experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import to_plain
from offbeat.metrics.measures import Row, over_seeds

INSTEAD = {
    "strategy": "methods are not settings: choose them with --strategies",
    "seed": "choose how many with --seeds",
    "name": "it says nothing about what is run",
}
STRATEGY = "strategy."


@dataclass(frozen=True)
class Over:
    """A setting and the values it takes, as they are written."""

    key: str
    values: tuple[str, ...]

    @property
    def path(self) -> list[str]:
        return self.key.split(".")


@dataclass(frozen=True)
class Point:
    """One combination of one method."""

    method: str
    settings: tuple[tuple[str, str], ...]  # those that this method has, in the order of the sweep

    @property
    def label(self) -> str:
        """`fedbuff(k=2) partition.alpha=0.1`: what is the strategy's stands in its brackets."""
        inside = ",".join(f"{key.removeprefix(STRATEGY)}={v}" for key, v in self.settings if key.startswith(STRATEGY))
        outside = [f"{key}={v}" for key, v in self.settings if not key.startswith(STRATEGY)]
        open_end = f"{self.method[:-1]}," if self.method.endswith(")") else f"{self.method}("
        return " ".join([f"{open_end}{inside})" if inside else self.method, *outside])


# ---------------------------------------------------------------- what is to be run


def parse(texts: Sequence[str]) -> list[Over]:
    """'strategy.beta=0.2,0.4' each."""
    found: dict[str, Over] = {}
    for text in texts:
        keys, given = _split(text)
        key, values = ".".join(keys), call_syntax.split(given)
        if not all(values):
            raise ConfigError(f"--over {text}: a value is missing: write setting=value,value")
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"--over {text}: {twice} is there twice")
        if key in INSTEAD:
            raise ConfigError(f"--over {text}: {INSTEAD[key]}")
        if key in found:
            raise ConfigError(f"--over {text}: {key} is given twice: write all its values with commas")
        found[key] = Over(key, tuple(values))
    return list(found.values())


def _split(text: str) -> tuple[list[str], str]:
    try:
        return experiment_files.split_change(text)
    except ConfigError:
        raise ConfigError(
            f"--over {text!r} is not understood: write setting=value,value, such as strategy.beta=0.2,0.4"
        ) from None


def having(methods: Mapping[str, Experiment], over: Iterable[Over]) -> dict[str, Experiment]:
    """Of methods nobody asked for by name, those with something to vary; all, where only the world is."""
    of_strategies = [one for one in over if one.key.startswith(STRATEGY)]
    found = {label: e for label, e in methods.items() if any(_has(e, one) for one in of_strategies)}
    return found or dict(methods)


def points(methods: Mapping[str, Experiment], over: Sequence[Over]) -> dict[Point, Experiment]:
    """Every combination of every method; refused if one of them cannot be meant."""
    made: dict[Point, Experiment] = {}
    for one in over:
        _refuse_unknown(methods, one)
        _refuse_set_already(methods, one)
    for method, experiment in methods.items():
        own = [one for one in over if not one.key.startswith(STRATEGY) or _has(experiment, one)]
        for values in product(*(one.values for one in own)):
            settings = tuple((one.key, value) for one, value in zip(own, values, strict=True))
            made[Point(method, settings)] = _changed(experiment, settings)
    _, same = method_labels.distinct([(point.label, experiment) for point, experiment in made.items()])
    if same:
        raise ConfigError(f"--over: {same[0]}; take one of them away")
    return made


def left_as_they_are(methods: Mapping[str, Experiment], over: Iterable[Over]) -> Iterator[str]:
    """A line for each method that has not all of the settings."""
    for method, experiment in methods.items():
        without = [one.key for one in over if one.key.startswith(STRATEGY) and not _has(experiment, one)]
        if without:
            yield f"{method} has no {' and no '.join(key.removeprefix(STRATEGY) for key in without)}: it stays as it is"


def _changed(experiment: Experiment, settings: Iterable[tuple[str, str]]) -> Experiment:
    try:
        return experiment_files.changed(experiment, [f"{key}={value}" for key, value in settings])
    except ConfigError as error:
        raise ConfigError(str(error).replace("--set ", "--over ")) from None


def _has(experiment: Experiment, one: Over) -> bool:
    here: Any = to_plain(experiment)
    for key in one.path:
        if not isinstance(here, dict) or key not in here:
            return False
        here = here[key]
    return True


def _refuse_unknown(methods: Mapping[str, Experiment], one: Over) -> None:
    """What no method has is a mistake, and one that knows the nearest right name."""
    if any(_has(experiment, one) for experiment in methods.values()):
        return
    first = next(iter(methods.values()))
    _changed(first, [(one.key, one.values[0])])


def _refuse_set_already(methods: Mapping[str, Experiment], one: Over) -> None:
    for method in methods:
        given = [key for key, _ in call_syntax.parse(method).settings] if method.endswith(")") else []
        if one.key.startswith(STRATEGY) and one.key.removeprefix(STRATEGY) in given:
            raise ConfigError(f"--over {one.key}: {method} says what it is: name the method without it")


def refuse_impossible(experiments: Iterable[Experiment], seeds: Iterable[int]) -> None:
    """Whatever cannot be built: a world once, however many strategies live in it."""
    looked: list[Experiment] = []
    for experiment in experiments:
        if not any(replace(other, strategy=experiment.strategy) == experiment for other in looked):
            looked.append(experiment)
    for experiment, seed in product(looked, seeds):
        build.setup(replace(experiment, seed=seed))


def create(
    folder: Path,
    found: Mapping[Point, Experiment],
    over: Sequence[Over],
    seeds: list[int],
    worker: str = "inline",
    memory: str | None = None,
) -> Comparison:
    stored = {
        "over": {one.key: list(one.values) for one in over},
        "points": [{"label": p.label, "method": p.method, "settings": dict(p.settings)} for p in found],
    }
    experiments = {point.label: experiment for point, experiment in found.items()}
    return comparing.create(folder, experiments, seeds, worker=worker, memory=memory, more={SWEEP: stored})


# ---------------------------------------------------------------- what came out


@dataclass(frozen=True)
class Result:
    point: Point
    row: Row | None  # over the seeds that are done; None where none is
    done: int
    seeds: int

    def value(self, key: str) -> str | None:
        """Of a setting that was varied for this method."""
        return dict(self.point.settings).get(key)


@dataclass(frozen=True)
class Sweep:
    comparison: Comparison
    over: tuple[Over, ...]
    points: Mapping[str, Point]  # by label

    @property
    def figure(self) -> Path:
        return self.comparison.folder / "sensitivity.png"

    def results(self) -> list[Result]:
        """One a combination, also where runs are still to come."""
        return [_result(point, self.comparison.runs(label)) for label, point in self.points.items()]


def _result(point: Point, runs: Sequence[Run]) -> Result:
    found = {run.experiment().seed: run.summary() for run in runs if run.complete}
    row = over_seeds(point.label, list(found.values()), {}, found) if found else None
    return Result(point, row, len(found), len(runs))


def read(comparison: Comparison) -> Sweep | None:
    """None where the comparison is none of a grid."""
    stored = comparison.stored().get(SWEEP)
    if stored is None:
        return None
    try:
        over = tuple(Over(printable(key), tuple(map(printable, values))) for key, values in stored["over"].items())
        found = {printable(entry["label"]): _point(entry) for entry in stored["points"]}
        if list(found) != comparison.strategies():
            raise ValueError("its combinations are not those of its runs")
        return Sweep(comparison, over, found)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{comparison.folder / MANIFEST} is damaged: {type(error).__name__}: {error}") from None


def _point(entry: Mapping[str, Any]) -> Point:
    settings = tuple((printable(key), printable(value)) for key, value in entry["settings"].items())
    return Point(printable(entry["method"]), settings)
