"""A few scaled uploads and what becomes of the honest clients of FedPSA, whose sketches grow with powers of the
model.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offbeat.api.run_simulation import simulate
from offbeat.api.simulation_result import Simulation
from offbeat.core.strategies import FedPSA
from offbeat.scenario.faults import Scaled


def poisoned(factor: float) -> Simulation:
    """Ten clients, three classes far apart; a fifth of the clients move `factor` times as far as they were trained
    to.
    """
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 8, generator=draw)
    labels = [torch.randint(3, (40,), generator=draw) for _ in range(10)]
    clients = [(centres[y] + torch.randn(40, 8, generator=draw), y) for y in labels]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    return simulate(net, clients, FedPSA(buffer=3, queue=6), faults=Scaled(share=0.2, factor=factor), until="600s")


def test_huge_uploads_are_refused_and_honest_clients_continue():
    done = poisoned(1e15)
    assert list(done.summary.refused) == ["numbers too large to compute with: a norm over 7e+12"]
    assert done.summary.updates > 4 * sum(done.summary.refused.values())
    assert done.metrics["acc"] > 0.9
    assert "warning" not in repr(done)


@pytest.mark.parametrize("factor", [1e4, 1e6, 1e9])
def test_honest_sketches_are_accepted_and_divergence_is_reported(factor):
    # the model is poisoned within the bound, so that training itself overflows: that the run says, instead of going on
    # without a word
    done = poisoned(factor)
    assert not any("sketch" in reason for reason in done.summary.refused)
    assert bool(done.outcome.model.isfinite().all())
    assert done.summary.refusal_warning is not None
    assert f"warning: {done.summary.refusal_warning}" in repr(done)
