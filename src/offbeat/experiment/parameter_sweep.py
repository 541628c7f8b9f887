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

from offbeat.core.errors import ConfigError, RunError, escape_unprintable
from offbeat.experiment import build
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import MANIFEST, SWEEP_KEY, Comparison
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import call_syntax, experiment_files
from offbeat.experiment.spec import methods as methods_section
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import to_values
from offbeat.metrics.measures import MethodRow, average_over_seeds

NOT_SWEEPABLE = {
    "strategy": "methods are not settings: choose them with --strategies",
    "seed": "choose how many with --seeds",
    "name": "it says nothing about what is run",
}
STRATEGY_PREFIX = "strategy."


@dataclass(frozen=True)
class SweptSetting:
    """A setting and the values it takes, as they are written."""

    key: str
    values: tuple[str, ...]

    @property
    def path(self) -> list[str]:
        return self.key.split(".")


@dataclass(frozen=True)
class Combination:
    """One combination of one method."""

    method: str
    settings: tuple[tuple[str, str], ...]  # those that this method has, in the order of the sweep

    @property
    def label(self) -> str:
        """`fedbuff(k=2) partition.alpha=0.1`: what is the strategy's stands in its brackets."""
        inside = ",".join(
            f"{key.removeprefix(STRATEGY_PREFIX)}={v}" for key, v in self.settings if key.startswith(STRATEGY_PREFIX)
        )
        outside = [f"{key}={v}" for key, v in self.settings if not key.startswith(STRATEGY_PREFIX)]
        open_end = f"{self.method[:-1]}," if self.method.endswith(")") else f"{self.method}("
        return " ".join([f"{open_end}{inside})" if inside else self.method, *outside])


# ---------------------------------------------------------------- what is to be run


def parse_swept_settings(texts: Sequence[str]) -> list[SweptSetting]:
    """'strategy.beta=0.2,0.4' each."""
    found: dict[str, SweptSetting] = {}
    for text in texts:
        keys, given = _split(text)
        key, values = ".".join(keys), call_syntax.split_calls(given)
        if not all(values):
            raise ConfigError(f"--over {text}: a value is missing: write setting=value,value")
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"--over {text}: {twice} is there twice")
        if key in NOT_SWEEPABLE:
            raise ConfigError(f"--over {text}: {NOT_SWEEPABLE[key]}")
        if key in found:
            raise ConfigError(f"--over {text}: {key} is given twice: write all its values with commas")
        found[key] = SweptSetting(key, tuple(values))
    return list(found.values())


def _split(text: str) -> tuple[list[str], str]:
    try:
        return experiment_files.split_change(text)
    except ConfigError:
        raise ConfigError(
            f"--over {text!r} is not understood: write setting=value,value, such as strategy.beta=0.2,0.4"
        ) from None


def methods_with_setting(methods: Mapping[str, Experiment], over: Iterable[SweptSetting]) -> dict[str, Experiment]:
    """Of methods nobody asked for by name, those with something to vary; all, where only the world is."""
    of_strategies = [one for one in over if one.key.startswith(STRATEGY_PREFIX)]
    found = {label: e for label, e in methods.items() if any(_has_setting(e, one) for one in of_strategies)}
    return found or dict(methods)


def combinations(methods: Mapping[str, Experiment], over: Sequence[SweptSetting]) -> dict[Combination, Experiment]:
    """Every combination of every method; refused if one of them cannot be meant."""
    made: dict[Combination, Experiment] = {}
    for one in over:
        _refuse_unknown(methods, one)
        _refuse_set_already(methods, one)
    for method, experiment in methods.items():
        own = [one for one in over if not one.key.startswith(STRATEGY_PREFIX) or _has_setting(experiment, one)]
        for values in product(*(one.values for one in own)):
            settings = tuple((one.key, value) for one, value in zip(own, values, strict=True))
            made[Combination(method, settings)] = _with_settings(experiment, settings)
    _, same = methods_section.distinct_methods([(point.label, experiment) for point, experiment in made.items()])
    if same:
        raise ConfigError(f"--over: {same[0]}; take one of them away")
    return made


def unchanged_methods(methods: Mapping[str, Experiment], over: Iterable[SweptSetting]) -> Iterator[str]:
    """A line for each method that has not all of the settings."""
    for method, experiment in methods.items():
        without = [one.key for one in over if one.key.startswith(STRATEGY_PREFIX) and not _has_setting(experiment, one)]
        if without:
            yield f"{method} has no {' and no '.join(key.removeprefix(STRATEGY_PREFIX) for key in without)}: it stays as it is"


def _with_settings(experiment: Experiment, settings: Iterable[tuple[str, str]]) -> Experiment:
    try:
        return experiment_files.with_changes(experiment, [f"{key}={value}" for key, value in settings])
    except ConfigError as error:
        raise ConfigError(str(error).replace("--set ", "--over ")) from None


def _has_setting(experiment: Experiment, one: SweptSetting) -> bool:
    here: Any = to_values(experiment)
    for key in one.path:
        if not isinstance(here, dict) or key not in here:
            return False
        here = here[key]
    return True


def _refuse_unknown(methods: Mapping[str, Experiment], one: SweptSetting) -> None:
    """What no method has is a mistake, and one that knows the nearest right name."""
    if any(_has_setting(experiment, one) for experiment in methods.values()):
        return
    first = next(iter(methods.values()))
    _with_settings(first, [(one.key, one.values[0])])


def _refuse_set_already(methods: Mapping[str, Experiment], one: SweptSetting) -> None:
    for method in methods:
        given = [key for key, _ in call_syntax.parse_call(method).settings] if method.endswith(")") else []
        if one.key.startswith(STRATEGY_PREFIX) and one.key.removeprefix(STRATEGY_PREFIX) in given:
            raise ConfigError(f"--over {one.key}: {method} says what it is: name the method without it")


def refuse_impossible(experiments: Iterable[Experiment], seeds: Iterable[int]) -> None:
    """Whatever cannot be built: a world once, however many strategies live in it."""
    looked: list[Experiment] = []
    for experiment in experiments:
        if not any(replace(other, strategy=experiment.strategy) == experiment for other in looked):
            looked.append(experiment)
    for experiment, seed in product(looked, seeds):
        build.setup(replace(experiment, seed=seed))


def create_sweep(
    folder: Path,
    found: Mapping[Combination, Experiment],
    over: Sequence[SweptSetting],
    seeds: list[int],
    worker: str = "inline",
    memory: str | None = None,
) -> Comparison:
    stored = {
        "over": {one.key: list(one.values) for one in over},
        "points": [{"label": p.label, "method": p.method, "settings": dict(p.settings)} for p in found],
    }
    experiments = {point.label: experiment for point, experiment in found.items()}
    return comparing.create_comparison(
        folder, experiments, seeds, worker=worker, memory=memory, more={SWEEP_KEY: stored}
    )


# ---------------------------------------------------------------- what came out


@dataclass(frozen=True)
class CombinationResult:
    point: Combination
    row: MethodRow | None  # over the seeds that are done; None where none is
    finished: int
    seeds: int

    def value(self, key: str) -> str | None:
        """Of a setting that was varied for this method."""
        return dict(self.point.settings).get(key)


@dataclass(frozen=True)
class Sweep:
    comparison: Comparison
    over: tuple[SweptSetting, ...]
    points: Mapping[str, Combination]  # by label

    @property
    def figure(self) -> Path:
        return self.comparison.folder / "sensitivity.png"

    def results(self) -> list[CombinationResult]:
        """One a combination, also where runs are still to come."""
        return [_result(point, self.comparison.runs(label)) for label, point in self.points.items()]


def _result(point: Combination, runs: Sequence[Run]) -> CombinationResult:
    found = {run.experiment().seed: run.summary() for run in runs if run.complete}
    row = average_over_seeds(point.label, list(found.values()), {}, found) if found else None
    return CombinationResult(point, row, len(found), len(runs))


def read_sweep(comparison: Comparison) -> Sweep | None:
    """None where the comparison is none of a grid."""
    stored = comparison.stored().get(SWEEP_KEY)
    if stored is None:
        return None
    try:
        over = tuple(
            SweptSetting(escape_unprintable(key), tuple(map(escape_unprintable, values)))
            for key, values in stored["over"].items()
        )
        found = {escape_unprintable(entry["label"]): _read_combination(entry) for entry in stored["points"]}
        if list(found) != comparison.strategies():
            raise ValueError("its combinations are not those of its runs")
        return Sweep(comparison, over, found)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{comparison.folder / MANIFEST} is damaged: {type(error).__name__}: {error}") from None


def _read_combination(entry: Mapping[str, Any]) -> Combination:
    settings = tuple((escape_unprintable(key), escape_unprintable(value)) for key, value in entry["settings"].items())
    return Combination(escape_unprintable(entry["method"]), settings)
