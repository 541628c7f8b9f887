"""Tests of a module with every kind of parameter, buffer and state."""

from __future__ import annotations

import torch
from torch import nn

import offbeat
from offbeat.core.vector import Layout


class Everything(nn.Module):
    """All that makes a module awkward at once: statistics, dropout, tied weights, frozen ones, a buffer that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.3)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(6), persistent=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = self.seen + x.detach().mean(0)
        x = self.dropout(self.norm(self.first(x)).relu())
        out: torch.Tensor = self.head(self.frozen(self.tied(x)).relu())
        return out


def test_a_module_with_every_kind_of_state_runs_under_several_methods() -> None:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    with torch.random.fork_rng(devices=[]):
        module = Everything()
    layout = Layout.of(module)
    # first 36 + 6, norm 12, tied bias 6, head 18 + 3 travel; then a mean and a variance of 6 and a counter
    assert (layout.num_params, layout.size) == (36 + 6 + 12 + 6 + 18 + 3, 81 + 12 + 1)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    for method in ("fedavg", "fedasync", "fedbuff"):
        clients = [(x[k::4], y[k::4]) for k in range(4)]
        run = offbeat.simulate(module, clients, method, until="40updates", seed=1)
        again = offbeat.simulate(module, clients, method, until="40updates", seed=1)
        told = run.state_dict()
        assert all(torch.equal(told[name], t) for name, t in again.state_dict().items())
        assert torch.equal(told["frozen.weight"], before["frozen.weight"])
        assert torch.equal(told["first.weight"], told["tied.weight"])
        assert not torch.equal(told["first.weight"], before["first.weight"])
        assert not torch.equal(told["norm.running_mean"], before["norm.running_mean"])
        assert all(torch.isfinite(t).all() for t in told.values())
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
