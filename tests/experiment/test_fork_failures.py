"""Scripts in which autograd has threads, so forks cannot train: runs continue without forks, with a warning."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from waiting import MAX_WAIT_SECONDS

# gradients nested so deeply that autograd starts another thread, in any build of torch
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

# what torch.compile and torch.export do; the CUDA build then seems to find a GPU, even without one
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
def test_without_forks_that_can_train_runs_continue_with_a_warning(before, fit):
    script = "import torch\n" + before + SCRIPT
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
    assert done.stdout == "True True\n", done.stderr
    warnings = [line.partition(" here (")[0] for line in done.stderr.splitlines()]
    assert warnings == ([] if fit else ["worker processes: forks cannot train", "forked processes cannot train"])
