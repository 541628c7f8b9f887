"""Tests of real training on a Ray cluster, which gives the bits of inline. Run by `make test-ray`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_forked_training import run

import offbeat
from waiting import MAX_WAIT_SECONDS

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def connected() -> Iterator[None]:
    """A script may be connected already: that cluster is used, and left as it is."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    assert ray.is_initialized()
    ray.shutdown()


@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("fedavg", {}),
        ("fedbuff", {}),
        ("aso_fed", {"bn": "local", "optimizer": "adam"}),
        ("fedpsa", {}),
        ("orthofl", {}),
        ("fedcompass", {}),
    ],
)
def test_strategies_train_to_the_same_bits(connected, name, training, caplog):
    settings: dict[str, Any] = {"strategy": name, "training": offbeat.Training(batch=8, lr=0.01, **training)}
    expected, given = run("inline", **settings), run("ray", **settings)
    assert given.trace.digest() == expected.trace.digest()
    assert torch.equal(given.outcome.model, expected.outcome.model)
    assert given.summary.updates == expected.summary.updates > 0
    assert given.summary.worker == "ray"
    assert not [line for line in caplog.messages if "can work at once" not in line]  # a default for more clients


MODEL_FILE = """
import torch
HIDDEN = 300
def loss(outputs, y):
    return torch.nn.functional.cross_entropy(outputs, y) * 2
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(40, HIDDEN), torch.nn.Linear(HIDDEN, 40)
        self.head.weight = torch.nn.Parameter(self.head.weight.detach())
    def forward(self, x):
        return self.head(self.body(x))
"""
LOAD = """
import sys, numpy as np, torch
from offbeat.workers.ray_codec import unpack_trainer
block = np.fromfile("block", np.uint8); block.flags.writeable = False
trainer = unpack_trainer(open("body", "rb").read(), block)
assert "my_model" not in sys.modules
print(type(trainer.binding.module).__name__, trainer.data.size(0), trainer.task.criterion.__name__)
"""


def test_a_trainer_with_a_users_model_can_be_loaded_without_the_file(tmp_path, monkeypatch):
    """The weights are sent once, although the parameters are views of one vector."""
    from offbeat.training.client_data import ClientData
    from offbeat.training.trainer import Trainer
    from offbeat.workers.ray_codec import pack_trainer

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_model.py").write_text(MODEL_FILE)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    import my_model  # type: ignore[import-not-found]

    x = torch.randn(20_000, 40, generator=torch.Generator().manual_seed(0))
    data = ClientData.separate([(x, torch.arange(20_000) % 40)])
    body, block = pack_trainer(Trainer(my_model.Net(), data, task=my_model.loss), data.tensors())
    weights = 4 * (2 * 40 * 300 + 340)
    assert weights < len(body) < 2 * weights
    assert block.nbytes >= 4 * 20_000 * 40
    (tmp_path / "body").write_bytes(body)
    block.tofile(tmp_path / "block")
    command = [sys.executable, "-W", "error", "-c", LOAD]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
    assert done.stdout == "Net 20000 loss\n", done.stderr
