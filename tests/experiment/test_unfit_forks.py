"""Scripts in which autograd has threads, so that no fork can train: runs go on without forks, and it is said."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from patience import PATIENCE

# more gradients within gradients than one thread takes: autograd starts another, in any build of torch
NESTED = """
class Within(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.depth:
            gradient(ctx.depth - 1)
        return grad, None

@torch.enable_grad()
def gradient(depth):
    Within.apply(torch.ones(1, requires_grad=True), depth).backward()

gradient(100)
"""

# what torch.compile and torch.export do. In the CUDA build there seems to be a GPU then, also where there is none
TRACED = """
from torch._subclasses import FakeTensorMode

with FakeTensorMode():
    torch.zeros(2)
torch.ones(1, requires_grad=True).backward()
"""

PLAIN = """
torch.ones(1, requires_grad=True).backward()
"""

SCRIPT = """
import offbeat

clients = [(torch.randn(16, 4, generator=torch.Generator().manual_seed(i)), torch.arange(16) % 2) for i in range(4)]
model = torch.nn.Linear(4, 2)
world = {"until": "100s", "delays": [10, 20, 30, 40]}
expected = offbeat.simulate(model, clients, "fedasync", **world).outcome.model
forked = offbeat.simulate(model, clients, "fedasync", worker="processes:2", **world).outcome.model
compared = offbeat.compare(model, clients, ["fedasync", "fedavg"], seeds=1, jobs=2, **world)
print(forked.equal(expected), compared["fedasync"][0].outcome.model.equal(expected))
"""


@pytest.mark.parametrize(
    ("before", "fit"),
    [(PLAIN, True), (TRACED, torch.version.cuda is None), (NESTED, False)],
    ids=["a gradient", "a traced model", "nested gradients"],
)
def test_what_a_script_did_with_autograd_before_costs_it_at_most_its_forks(before, fit):
    script = "import torch\n" + before + SCRIPT
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "True True\n", done.stderr
    said = [line.partition(" here (")[0] + line.rpartition(")")[2] for line in done.stderr.splitlines()]
    one, several = "worker processes: forks cannot train: inline", "forks cannot train: runs go one after the other"
    assert said == ([] if fit else [f"{one} is used", several])
