"""FedCompass's presets have the paper's numbers."""

from __future__ import annotations

import pytest
from preset_runs import SCALES

from offbeat import presets
from offbeat.engine.until import Target
from offbeat.scenario.data.images import ISIC_CLASSES
from offbeat.scenario.delays import ConstantDelays, ExponentialDelays, Normal
from offbeat.scenario.partition import ClassSubsets
from offbeat.training.tasks import TaskLoss


def test_methods_are_set_as_the_paper_says():
    methods = presets.load("fedcompass/table1-mnist-class-m20-homo").methods
    assert (methods["fedbuff"].k, methods["fedat"].ratio, methods["fedavgm"].mu) == (5, 2.0, 0.9)
    assert (methods["fedcompass+M"].momentum, methods["fedcompass+N"].normalized) == (True, True)
    # Table 3 at m = 5, Qmax = 200: 0.05 × 200 = 10, …, 1.0 × 200 = 200
    ratios = presets.load("fedcompass/table3-mnist-m5-homo").methods
    assert [m.q_min for name, m in ratios.items() if name.startswith("fedcompass")] == [10, 20, 40, 80, 120, 160, 200]


def test_targets_speeds_and_partitions():
    assert presets.load("fedcompass/table1-cifar10-class-m5-homo").experiment.target == Target("acc", 0.6)
    assert presets.load("fedcompass/table2-ixi-exp").experiment.target == Target("dice", 0.98)
    laws = [presets.load(f"fedcompass/table1-mnist-class-m5-{law}").experiment for law in ("homo", "normal", "exp")]
    assert [type(e.delays) for e in laws] == [ConstantDelays, Normal, ExponentialDelays]
    assert {e.delays.unit for e in laws} == {"step"}
    assert laws[0].partition == ClassSubsets(fewest=5, most=6)
    assert presets.load("fedcompass/table1-mnist-class-m20-exp").experiment.partition == ClassSubsets(fewest=3, most=5)


@pytest.mark.parametrize("scale", SCALES)
def test_isics_loss_is_flambys_weighted_focal_loss(scale):
    """Its weights are all training examples over those of a class, MEL to SCC: 101 for the rarest, DF."""
    loss = presets.load("fedcompass/table2-isic-exp", scale).experiment.loss
    assert (loss.gamma, len(loss.weights)) == (2.0, len(ISIC_CLASSES))
    assert sum(1 / w for w in loss.weights) == pytest.approx(1, abs=1e-4)  # shares of the classes
    assert ISIC_CLASSES[loss.weights.index(max(loss.weights))] == "DF"
    assert presets.load("fedcompass/table2-ixi-exp", scale).experiment.loss == TaskLoss()
