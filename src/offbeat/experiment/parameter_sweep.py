"""Parameter sweeps: all combinations of the given values, for every method.

A sweep is a comparison whose labels are combinations; its manifest also lists the settings of each one. It is created,
executed and resumed like a comparison. Settings of the strategy are varied only for methods that have them; other
methods are included without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from offbeat.core.errors import ConfigError, RunError, escape_unprintable
from offbeat.experiment import build
from offbeat.experiment.comparison import MANIFEST, SWEEP_KEY, Comparison, create_comparison
from offbeat.experiment.spec import call_syntax, experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.methods import distinct_methods
from offbeat.experiment.spec.serialization import to_values
from offbeat.metrics import MethodRow, average_over_seeds

NOT_SWEEPABLE = {
    "strategy": "methods are not settings: choose them with --strategies",
    "seed": "choose how many with --seeds",
    "name": "it does not change what is run",
}
STRATEGY_PREFIX = "strategy."


@dataclass(frozen=True)
class SweptSetting:
    """A setting and its values as text."""

    key: str
    values: tuple[str, ...]

    @property
    def of_strategy(self) -> bool:
        """Tell whether it is a setting of the strategy, which some methods may not have."""
        return self.key.startswith(STRATEGY_PREFIX)


@dataclass(frozen=True)
class Combination:
    """A combination of values for one method."""

    method: str
    settings: tuple[tuple[str, str], ...]  # those that the method has, in the order of the sweep

    @property
    def label(self) -> str:
        """Return a label such as `fedbuff(k=2) partition.alpha=0.1`, with settings of the strategy in brackets."""
        inside = [f"{k.removeprefix(STRATEGY_PREFIX)}={v}" for k, v in self.settings if k.startswith(STRATEGY_PREFIX)]
        outside = [f"{key}={value}" for key, value in self.settings if not key.startswith(STRATEGY_PREFIX)]
        if not inside:
            return " ".join([self.method, *outside])
        start = f"{self.method[:-1]}," if self.method.endswith(")") else f"{self.method}("
        return " ".join([f"{start}{','.join(inside)})", *outside])


def parse_swept_settings(texts: Sequence[str]) -> list[SweptSetting]:
    """Parse the values of --over, such as 'strategy.beta=0.2,0.4'."""
    swept: dict[str, SweptSetting] = {}
    for text in texts:
        try:
            keys, value_text = experiment_files.split_change(text)
        except ConfigError:
            raise ConfigError(f"--over {text!r} is invalid: write setting=value,value") from None
        key, values = ".".join(keys), call_syntax.split_calls(value_text)
        if not all(values):
            raise ConfigError(f"--over {text}: a value is missing: write setting=value,value")
        duplicate = next((value for value in values if values.count(value) > 1), None)
        if duplicate is not None:
            raise ConfigError(f"--over {text}: {duplicate} occurs twice")
        if key in NOT_SWEEPABLE:
            raise ConfigError(f"--over {text}: {NOT_SWEEPABLE[key]}")
        if key in swept:
            raise ConfigError(f"--over {text}: {key} is given twice: write all its values with commas")
        swept[key] = SweptSetting(key, tuple(values))
    return list(swept.values())


def methods_with_setting(methods: Mapping[str, Experiment], swept: Iterable[SweptSetting]) -> dict[str, Experiment]:
    """Select default methods: those with a swept setting, or all if only settings of the world are swept."""
    of_strategies = [setting for setting in swept if setting.of_strategy]
    return {
        label: experiment
        for label, experiment in methods.items()
        if any(_has_setting(experiment, setting) for setting in of_strategies)
    } or dict(methods)


def combinations(methods: Mapping[str, Experiment], swept: Sequence[SweptSetting]) -> dict[Combination, Experiment]:
    """Build the experiments of all combinations; invalid and duplicate ones are rejected."""
    for setting in swept:
        if not any(_has_setting(experiment, setting) for experiment in methods.values()):
            first = next(iter(methods.values()))
            _with_settings(first, [(setting.key, setting.values[0])])  # raises with the nearest right name
        _check_not_in_label(methods, setting)
    experiments: dict[Combination, Experiment] = {}
    for method, experiment in methods.items():
        varied = [setting for setting in swept if not setting.of_strategy or _has_setting(experiment, setting)]
        for values in product(*(setting.values for setting in varied)):
            settings = tuple((setting.key, value) for setting, value in zip(varied, values, strict=True))
            experiments[Combination(method, settings)] = _with_settings(experiment, settings)
    _, duplicates = distinct_methods((combination.label, value) for combination, value in experiments.items())
    if duplicates:
        raise ConfigError(f"--over: {duplicates[0]}; remove one of them")
    return experiments


def unchanged_methods(methods: Mapping[str, Experiment], swept: Iterable[SweptSetting]) -> Iterator[str]:
    """Yield a line for each method that lacks some of the settings."""
    for method, experiment in methods.items():
        missing = [s.key for s in swept if s.of_strategy and not _has_setting(experiment, s)]
        if missing:
            names = " and no ".join(key.removeprefix(STRATEGY_PREFIX) for key in missing)
            yield f"{method} has no {names}: it stays as it is"


def _with_settings(experiment: Experiment, settings: Iterable[tuple[str, str]]) -> Experiment:
    """Return the experiment with other settings; errors name the option --over."""
    try:
        return experiment_files.with_changes(experiment, [f"{key}={value}" for key, value in settings])
    except ConfigError as error:
        raise ConfigError(str(error).replace("--set ", "--over ")) from None


def _has_setting(experiment: Experiment, setting: SweptSetting) -> bool:
    """Tell whether an experiment has a setting."""
    section = to_values(experiment)
    for key in setting.key.split("."):
        if not isinstance(section, dict) or key not in section:
            return False
        section = section[key]
    return True


def _check_not_in_label(methods: Mapping[str, Experiment], setting: SweptSetting) -> None:
    """Reject a swept setting that a method such as `fedbuff(k=2)` fixes."""
    for method in methods:
        fixed = [key for key, _ in call_syntax.parse_call(method).settings] if method.endswith(")") else []
        if setting.of_strategy and setting.key.removeprefix(STRATEGY_PREFIX) in fixed:
            raise ConfigError(f"--over {setting.key}: {method} sets it already: name the method without it")


def refuse_impossible(experiments: Iterable[Experiment], seeds: Iterable[int]) -> None:
    """Build each world once for all strategies; raise an error if that is impossible."""
    worlds: list[Experiment] = []
    for experiment in experiments:
        if not any(replace(other, strategy=experiment.strategy) == experiment for other in worlds):
            worlds.append(experiment)
    for experiment, seed in product(worlds, seeds):
        build.setup(replace(experiment, seed=seed))


def create_sweep(
    folder: Path,
    experiments: Mapping[Combination, Experiment],
    swept: Sequence[SweptSetting],
    seeds: list[int],
    worker: str = "inline",
    memory: str | None = None,
) -> Comparison:
    """Create the comparison of all combinations."""
    sweep = {
        "over": {setting.key: list(setting.values) for setting in swept},
        "points": [{"label": c.label, "method": c.method, "settings": dict(c.settings)} for c in experiments],
    }
    by_label = {combination.label: experiment for combination, experiment in experiments.items()}
    return create_comparison(folder, by_label, seeds, worker=worker, memory=memory, more={SWEEP_KEY: sweep})


# ---------------------------------------------------------------- results


@dataclass(frozen=True)
class CombinationResult:
    """The result of one combination over its finished seeds."""

    point: Combination
    row: MethodRow | None  # None if no seed is finished
    finished: int
    seeds: int

    def value(self, key: str) -> str | None:
        """Return the value of a swept setting, if the method has it."""
        return dict(self.point.settings).get(key)


@dataclass(frozen=True)
class Sweep:
    """A comparison with the settings that it varies."""

    comparison: Comparison
    over: tuple[SweptSetting, ...]
    points: Mapping[str, Combination]  # by label

    @property
    def figure(self) -> Path:
        """Return the path where the figure of the sweep is stored."""
        return self.comparison.folder / "sensitivity.png"

    def results(self) -> list[CombinationResult]:
        """Return the result of each combination, including unfinished ones."""
        results = []
        for label, combination in self.points.items():
            runs = self.comparison.runs(label)
            by_seed = {run.experiment().seed: run.summary() for run in runs if run.complete}
            row = average_over_seeds(combination.label, list(by_seed.values()), {}, by_seed) if by_seed else None
            results.append(CombinationResult(combination, row, len(by_seed), len(runs)))
        return results


def read_sweep(comparison: Comparison) -> Sweep | None:
    """Read the settings that a comparison varies; None if it is not a sweep."""
    stored = comparison.stored().get(SWEEP_KEY)
    if stored is None:
        return None
    try:
        swept = tuple(
            SweptSetting(escape_unprintable(key), tuple(map(escape_unprintable, values)))
            for key, values in stored["over"].items()
        )
        points: dict[str, Combination] = {}
        for entry in stored["points"]:
            settings = ((escape_unprintable(key), escape_unprintable(v)) for key, v in entry["settings"].items())
            label, method = escape_unprintable(entry["label"]), escape_unprintable(entry["method"])
            points[label] = Combination(method, tuple(settings))
        if list(points) != comparison.strategies():
            raise ValueError("its combinations are not those of its runs")
        return Sweep(comparison, swept, points)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{comparison.folder / MANIFEST} is damaged: {type(error).__name__}: {error}") from None
