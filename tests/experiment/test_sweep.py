"""Tests of parameter sweeps: combinations, labels, folders and results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from experiment import messages
from offbeat.core.errors import ConfigError, RunError
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.engine.until import Target, Until
from offbeat.experiment import parameter_sweep as sweeps
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.parameter_sweep import Combination, CombinationResult, Sweep, SweptSetting
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run import pooled_runs
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics.measures import MEASURES, MethodRow
from offbeat.presets import load
from offbeat.results import sweep_figure
from offbeat.scenario.models import Linear

WORLD = Experiment(clients=4, model=Linear(), until=Until(seconds=60.0), target=Target("acc", 0.5))
METHODS = {"fedbuff": replace(WORLD, strategy=FedBuff(k=3)), "fedavg": replace(WORLD, strategy=FedAvg())}
K, ALPHA = SweptSetting("strategy.k", ("2", "4")), SweptSetting("partition.alpha", ("0.1", "1"))


def test_all_combinations_with_methods_that_lack_a_setting() -> None:
    made = sweeps.combinations(METHODS, [K, ALPHA])
    assert [point.label for point in made] == [
        "fedbuff(k=2) partition.alpha=0.1",
        "fedbuff(k=2) partition.alpha=1",
        "fedbuff(k=4) partition.alpha=0.1",
        "fedbuff(k=4) partition.alpha=1",
        "fedavg partition.alpha=0.1",
        "fedavg partition.alpha=1",
    ]
    settings = [(getattr(e.strategy, "k", None), getattr(e.partition, "alpha", None)) for e in made.values()]
    assert settings == [(2, 0.1), (2, 1), (4, 0.1), (4, 1), (None, 0.1), (None, 1)]
    assert list(sweeps.unchanged_methods(METHODS, [K, ALPHA])) == ["fedavg has no k: it stays as it is"]


def test_default_methods_are_those_with_a_swept_setting() -> None:
    assert list(sweeps.methods_with_setting(METHODS, [K, ALPHA])) == ["fedbuff"]
    assert list(sweeps.methods_with_setting(METHODS, [ALPHA])) == ["fedbuff", "fedavg"]


@pytest.mark.parametrize(
    ("method", "settings", "label"),
    [
        ("fedbuff", {"strategy.k": "2"}, "fedbuff(k=2)"),
        ("fedbuff(lr=0.5)", {"strategy.k": "2"}, "fedbuff(lr=0.5,k=2)"),
        ("fedavg", {"clients": "4", "training.lr": "0.1"}, "fedavg clients=4 training.lr=0.1"),
        ("fedasync", {"strategy.staleness.a": "1", "clients": "4"}, "fedasync(staleness.a=1) clients=4"),
    ],
)
def test_labels_of_combinations(method: str, settings: dict[str, str], label: str) -> None:
    assert Combination(method, tuple(settings.items())).label == label


def test_swept_values_may_be_calls() -> None:
    [over] = sweeps.parse_swept_settings(["partition=dirichlet(alpha=0.1,balanced=true),iid"])
    assert over == SweptSetting("partition", ("dirichlet(alpha=0.1,balanced=true)", "iid"))
    assert sweeps.parse_swept_settings(["strategy.work=[1,2]"]) == [SweptSetting("strategy.work", ("[1,2]",))]


@pytest.mark.parametrize(("over", "words"), messages.SWEPT_SETTINGS)
def test_invalid_swept_settings_are_rejected(over: list[str], words: str) -> None:
    with messages.expect(words, error=ConfigError):
        sweeps.parse_swept_settings(over)


@pytest.mark.parametrize(
    ("case", "over", "methods"),
    [
        ("unknown", SweptSetting("strategy.kk", ("2",)), METHODS),
        ("without section", SweptSetting("lr", ("0.1",)), METHODS),
        ("wrong type", SweptSetting("partition.alpha", ("0.1", "x")), METHODS),
        ("out of range", SweptSetting("strategy.k", ("0",)), METHODS),
        ("equal values", SweptSetting("clients", ("4", "4.0")), METHODS),
        ("fixed by the method", K, {"fedbuff(k=2)": METHODS["fedbuff"], "fedavg": METHODS["fedavg"]}),
        ("equal methods", K, {"a": METHODS["fedbuff"], "b": replace(WORLD, strategy=FedBuff(k=7))}),
    ],
)
def test_invalid_combinations_are_rejected(case: str, over: SweptSetting, methods: dict[str, Experiment]) -> None:
    with messages.expect(messages.COMBINATIONS[case], error=ConfigError):
        sweeps.combinations(methods, [over])


# ---------------------------------------------------------------- what is stored


def made(folder: Path, over: list[SweptSetting], methods: dict[str, Experiment] = METHODS, seeds: int = 1) -> Sweep:
    read = sweeps.read_sweep(sweeps.create_sweep(folder, sweeps.combinations(methods, over), over, list(range(seeds))))
    assert read is not None
    return read


def test_a_sweep_reads_back_equal(tmp_path: Path) -> None:
    sweep = made(tmp_path / "x", [K, ALPHA])
    assert sweep.over == (K, ALPHA)
    assert list(sweep.points.values()) == list(sweeps.combinations(METHODS, [K, ALPHA]))
    assert sweep.comparison.verb == "sweep"
    folders = [entry["folder"] for entry in sweep.comparison.layout()]
    assert folders[0] == "fedbuff-k-2-partition.alpha-0.1-seed0"
    sums = [json.loads((tmp_path / "x" / name / "world.json").read_text())["data"] for name in folders]
    assert sums[0] == sums[2] == sums[4]  # one partition
    assert sums[1] == sums[3] == sums[5]  # another
    assert sums[0] != sums[1]


def test_a_comparison_is_no_sweep_and_a_damaged_one_is_one_line(tmp_path: Path) -> None:
    sweep = made(tmp_path / "x", [K])
    path = tmp_path / "x" / "compare.json"
    whole = json.loads(path.read_text())
    for wrong in (5, {}, {"over": 5, "points": []}, {"over": {}, "points": [{}]}, {**whole["sweep"], "points": []}):
        path.write_text(json.dumps({**whole, "sweep": wrong}))
        with pytest.raises(RunError, match=messages.DAMAGED_MANIFEST):
            sweeps.read_sweep(Comparison(tmp_path / "x"))
    del whole["sweep"]
    path.write_text(json.dumps(whole))
    assert sweeps.read_sweep(sweep.comparison) is None


# ---------------------------------------------------------------- what came out, by hand


def result(method: str, settings: dict[str, str], done: int = 2, **values: float) -> CombinationResult:
    filled = {measure.key: 0.0 for measure in MEASURES} | {"spread": 0.0, "best_spread": 0.0, "reached": done} | values
    point = Combination(method, tuple(settings.items()))
    row = MethodRow(point.label, done, "acc", True, "test", filled) if done else None
    return CombinationResult(point, row, done, 2)


def test_the_table_has_one_line_per_combination(tmp_path: Path) -> None:
    sweep = made(tmp_path / "x", [K])
    half = {"time_to_target": 30.0, "restricted_time": 40.0, "reached": 1}
    results = [
        result("fedbuff", {"strategy.k": "2"}, final=0.6, spread=0.1, time_to_target=45.0, restricted_time=45.0),
        result("fedbuff", {"strategy.k": "4"}, final=0.7, spread=0.05, **half),
        result("fedavg", {}, final=0.5, spread=0.0, time_to_target=float("nan"), restricted_time=50.0, reached=0),
    ]
    assert sweep_figure.sweep_table(sweep, results).rows == [
        ["strategy", "strategy.k", "final acc", "time to acc=0.5"],
        ["fedbuff", "2", "0.600 ± 0.100", "45 s"],
        ["fedbuff", "4", "0.700 ± 0.050", "> 40 s (1 of 2)"],
        ["fedavg", "–", "0.500 ± 0.000", "> 50 s (0 of 2)"],
    ]
    unfinished = [results[0], replace(results[1], row=None, finished=0), results[2]]
    rows = sweep_figure.sweep_table(sweep, unfinished).rows
    assert [line[-1] for line in rows] == ["runs", "2 of 2", "0 of 2", "2 of 2"]
    assert rows[2][2:4] == ["–", "–"]


def test_a_method_without_the_setting_has_one_value_for_all() -> None:
    results = [result("a", {"x": "1", "y": "2"}, final=0.3), result("b", {"y": "2"}, final=0.4)]
    assert sweep_figure.combination_value(results, "a", {"x": "1", "y": "2"}) == 0.3
    assert sweep_figure.combination_value(results, "b", {"x": "7", "y": "2"}) == 0.4
    missing = sweep_figure.combination_value(results, "b", {"x": "7", "y": "3"})
    assert missing != missing


def test_axes_are_logarithmic_where_values_span_decades() -> None:
    assert sweep_figure.axis_values(["1e-3", "0.1", "2"]) == [0.001, 0.1, 2.0]
    assert sweep_figure.axis_values(["1", "iid"]) is None
    assert sweep_figure.axis_values(["1", "nan"]) is None
    assert sweep_figure.needs_log_axis([0.001, 0.1])
    assert not sweep_figure.needs_log_axis([0.2, 0.4, 0.6])
    assert not sweep_figure.needs_log_axis([0.0, 100.0])


@pytest.mark.parametrize(
    ("over", "methods"),
    [
        ([K], METHODS),
        ([SweptSetting("training.lr", ("0.1", "0.001"))], METHODS),
        ([SweptSetting("model", ("linear", "mlp"))], METHODS),
        ([K, ALPHA], METHODS),
        ([K, ALPHA, SweptSetting("clients", ("2", "3"))], METHODS),
        ([SweptSetting("strategy.alpha", ("0.3", "0.6"))], {"$x_1$": replace(WORLD, strategy=FedAsync())}),
    ],
)
def test_every_sweep_has_a_figure_even_unfinished(
    tmp_path: Path, over: list[SweptSetting], methods: dict[str, Experiment]
) -> None:
    sweep = made(tmp_path / "x", over, methods)
    points = list(sweep.points.values())
    results = [result(p.method, dict(p.settings), done=2 * (i % 2), final=0.1 * i) for i, p in enumerate(points)]
    for some in (results, [replace(r, row=None, finished=0) for r in results]):
        sweep_figure.save_sweep_figure(sweep, some, sweep.figure)
        assert sweep.figure.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_presets_keep_their_other_settings() -> None:
    preset = load("quickstart")
    found = sweeps.combinations({"aso_fed": preset.with_strategy("aso_fed")}, [SweptSetting("strategy.beta", ("0.5",))])
    [experiment] = found.values()
    assert experiment.strategy == replace(preset.methods["aso_fed"], beta=0.5)


def test_pooled_runs_of_different_worlds_equal_single_runs(tmp_path: Path) -> None:
    """Other rates, models and numbers of clients side by side; on a CPU, what a GPU does."""
    over = [
        SweptSetting("training.lr", ("0.1", "0.02")),
        SweptSetting("model", ("linear", "mlp(hidden=[5])")),
        SweptSetting("clients", ("2", "3")),
    ]
    methods = {"fedbuff": replace(WORLD, strategy=FedBuff(k=2), until=Until(updates=6))}
    alone, together = (made(tmp_path / name, over, methods).comparison for name in ("alone", "together"))
    folders = [entry["folder"] for entry in alone.layout()]
    for folder in folders:
        runs.execute_run(runs.Run(alone.folder / folder))
    assert pooled_runs.execute_side_by_side([runs.Run(together.folder / folder) for folder in folders])
    for folder in folders:
        one, other = (load_file(made.folder / folder / "model.safetensors") for made in (alone, together))
        for key, value in one.items():
            torch.testing.assert_close(value, other[key], rtol=1e-3, atol=1e-5)
