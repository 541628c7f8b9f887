"""Real training on a Ray cluster: the bits of inline, with memory at clients, sketches, statistics and a model of a
file that no other process can import. Run by `make test-ray`.
"""

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


def test_a_trainer_with_a_model_of_ones_own_file_can_be_loaded_where_that_file_is_not(tmp_path):
    """And brings its weights once, though its parameters are views of one vector."""
    from offbeat.workers.ray_codec import pack_trainer

    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_model.py").write_text(
        "import torch\n"
        "HIDDEN = 300\n"
        "def loss(outputs, y):\n    return torch.nn.functional.cross_entropy(outputs, y) * 2\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body, self.head = torch.nn.Linear(40, HIDDEN), torch.nn.Linear(HIDDEN, 40)\n"
        "        self.head.weight = torch.nn.Parameter(self.head.weight.detach())\n"
        "    def forward(self, x):\n        return self.head(self.body(x))\n"
    )
    from offbeat.training.client_data import ClientData
    from offbeat.training.trainer import Trainer

    sys.path.insert(0, str(folder))
    try:
        import my_model  # type: ignore[import-not-found]

        x = torch.randn(20_000, 40, generator=torch.Generator().manual_seed(0))
        data = ClientData.separate([(x, torch.arange(20_000) % 40)])
        body, block = pack_trainer(Trainer(my_model.Net(), data, task=my_model.loss), data.tensors())
    finally:
        sys.path.remove(str(folder))
    weights = 4 * (2 * 40 * 300 + 340)
    assert weights < len(body) < 2 * weights
    assert block.nbytes >= 4 * 20_000 * 40
    (tmp_path / "body").write_bytes(body)
    block.tofile(tmp_path / "block")
    code = (
        "import sys, numpy as np, torch\n"
        "from offbeat.workers.ray_codec import unpack_trainer\n"
        "block = np.fromfile('block', np.uint8); block.flags.writeable = False\n"
        "trainer = unpack_trainer(open('body', 'rb').read(), block)\n"
        "assert 'my_model' not in sys.modules\n"
        "print(type(trainer.binding.module).__name__, trainer.data.size(0), trainer.task.criterion.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
    )
    assert done.stdout == "Net 20000 loss\n", done.stderr
