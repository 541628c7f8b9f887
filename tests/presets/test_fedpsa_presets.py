"""FedPSA's presets have the paper's numbers."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from offbeat import presets


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
        grid = {attrgetter(*fields)(method): method for method in preset.methods.values()}
        assert len(grid) == len(preset.methods) == 12
        papers = presets.load("fedpsa/table1-mnist").methods["fedpsa"]
        assert preset.experiment.strategy == grid[attrgetter(*fields)(papers)]
        first, *others = grid.values()  # methods differ only in these fields
        for other in others:
            assert replace(other, **{field: getattr(first, field) for field in fields}) == first
