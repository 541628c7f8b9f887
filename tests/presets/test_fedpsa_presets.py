"""FedPSA's presets have the paper's numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from preset_runs import check_settings

from offbeat import presets

# preset -> setting -> value in the paper
PAPER_SETTINGS = {
    "fedpsa/table1-mnist": {"clients": 50, "partition.alpha": 0.1, "training.lr_decay": 0.999, "until.seconds": 864e3},
    "fedpsa/table2-cifar100-alpha0.5": {"partition.alpha": 0.5, "delays.low": 10, "delays.high": 500,
    "strategy.concurrency": 10},
    "fedpsa/table4-longtail-2500": {"delays.low": 50, "delays.high": 2500, "partition.alpha": 1.0},
    "fedpsa/table6-alpha0.1-p0.3": {"strategy.concurrency": 15, "strategy.buffer": 5, "strategy.queue": 50,
    "partition.alpha": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER_SETTINGS)
def test_settings_are_those_of_the_paper(name):
    check_settings(name, PAPER_SETTINGS[name])


def test_methods_are_set_as_the_paper_says():
    methods = presets.load("fedpsa/table1-mnist").methods
    assert (methods["fedavg"].sample, methods["fedbuff"].concurrency, methods["fedpac"].lr) == (0.2, 10, None)
    assert "fedpac" not in presets.load("fedpsa/table1-fmnist").methods  # one layer has no head and body


def test_the_delay_of_a_client_is_drawn_once():
    for name in [n for n in presets.names() if n.startswith("fedpsa/")]:
        delays = presets.load(name).experiment.delays
        assert len({delays.seconds(0, 3, job, 1) for job in range(20)}) == 1, name


def test_figure_4_is_a_grid_around_the_papers_values():
    for name, fields in (("temperature", ("gamma", "delta")), ("lengths", ("buffer", "queue"))):
        preset = presets.load(f"fedpsa/fig4-{name}")
        grid = {tuple(getattr(m, f) for f in fields): m for m in preset.methods.values()}
        assert len(grid) == len(preset.methods) == 12
        assert (
            preset.experiment.strategy
            == grid[tuple(getattr(presets.load("fedpsa/table1-mnist").methods["fedpsa"], f) for f in fields)]
        )
        assert {replace(m, **dict(zip(fields, next(iter(grid)), strict=True))) for m in grid.values()} == {
            next(iter(grid.values()))
        }
