"""OrthoFL's presets have the paper's numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from preset_runs import synthetic_data

from offbeat import presets
from offbeat.engine.until import Until
from offbeat.papers.orthofl.presets import COLUMNS
from offbeat.scenario.delays import Devices, Lognormal


def test_methods_are_set_as_the_paper_says():
    methods = presets.load("orthofl/table2-cifar100").methods
    assert list(methods) == ["fedavg", "fedprox", "fedadam", "fedasync", "fedbuff", "ca2fl", "orthofl", "orthofl-chain"]
    public = methods["orthofl-chain"]  # as in the authors' code
    assert (public.reference, public.first_alpha, public.beta, public.a) == ("chain", 1.0, 0.6, 0.5)
    assert (methods["fedavg"].sample, methods["fedasync"].alpha, methods["fedasync"].rho) == (10, 0.6, 0.0)


def test_delay_laws_of_figure_6_have_the_mean_of_the_devices():
    # the mean of the nine means: 2617.821 / 9 = 290.869
    law = presets.load("orthofl/fig6-lognormal").experiment.delays
    assert isinstance(law, Lognormal)
    assert law.mean == pytest.approx(290.869, abs=1e-3)
    assert presets.load("orthofl/fig6-halfnormal").experiment.delays.mean == pytest.approx(290.869, abs=1e-3)
    assert isinstance(presets.load("orthofl/table2-mnist").experiment.delays, Devices)


def test_a_run_is_as_long_as_five_hundred_updates_take():
    """A device answers after m + s phi(m/s) seconds on average. The nine: 96.2 + 135.6 × 0.3101 = 138.3, 904.1 + 222.2
    × 0.0001 = 904.2, 360.2 + 103.5 × 0.0009 = 360.3, 276.6 + 187.2 × 0.1339 = 301.7, 150.2 + 210.3 × 0.3091 = 215.2,
    161.4 + 194.4 × 0.2826 = 216.3, 177.2 + 209.8 × 0.2792 = 235.8, 106.3 + 32.7 × 0.0020 = 106.3, 385.6 + 111.9 ×
    0.0011 = 385.7. The mean of their inverses is 0.004437, so ten clients send 500 updates in 500 / 0.04437 = 11,268 s.
    """
    assert presets.load("orthofl/table2-mnist").experiment.until.seconds == pytest.approx(11_268, abs=10)


def test_the_grid_resolves_a_thirtieth_of_fedavgs_time():
    """The paper's 0.03 and 0.09 of FedAvg's time: with 200 points or more they lie at least six points apart where
    FedAvg needs half of the run (0.03 × 100 = 3 and 0.09 × 100 = 9); with fifty they would be one and a half.
    """
    for name in COLUMNS:
        experiment = presets.load(f"orthofl/table2-{name}").experiment
        assert experiment.until.seconds / experiment.evaluate_every == pytest.approx(200)


@pytest.mark.parametrize(("name", "clients", "each"), [("cifar10", 10, 4000), ("cifar100", 100, 400)])
def test_cifar_presets_hold_out_ten_thousand_images_and_augment_the_rest(name, clients, each):
    experiment = presets.load(f"orthofl/table2-{name}").experiment
    assert (experiment.clients, experiment.training.augment) == (clients, "crop-flip")
    dealt = 50_000 // clients  # equal clients
    parts = experiment.split.parts(0, 0, torch.arange(dealt))
    assert (len(parts.train), clients * len(parts.validation), len(parts.test)) == (each, 10_000, 0)
    assert presets.load(f"orthofl/table2-{name}", "quick").experiment.training.augment == "crop-flip"
    assert presets.load("orthofl/table2-mnist").experiment.training.augment is None


def test_the_code_that_draws_figure_2b_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    preset = presets.load("orthofl/motivation-100", scale="quick")
    small = replace(preset.experiment, data=synthetic_data("mnist"), until=Until(seconds=200.0), evaluate_every=1e6)
    monkeypatch.setattr(presets, "load", lambda name, scale: replace(preset, experiment=small))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "presets.md", "exec"), {})
    assert capsys.readouterr().out.startswith("9.weight, 22 commits: mean cosine of consecutive commits")
    assert (tmp_path / "figure-2b.png").stat().st_size > 1000
