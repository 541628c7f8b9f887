"""A model and its data are tried out before a run: what does not fit is one sentence, and nothing is moved by
trying.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offbeat.core.errors import DataError
from offbeat.scenario.data.dataset import Pixels
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import Evaluator, check_model
from offbeat.training.tasks import Classification, Loss, Survival, Task, as_task

X, Y = torch.linspace(-1, 1, 24).reshape(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])


def tried(
    module: nn.Module,
    x: Tensor = X,
    y: Tensor = Y,
    test: tuple[Tensor, Tensor] | None = None,
    task: Task | Loss | None = None,
) -> None:
    data = ClientData.separate([(x[:3], y[:3]), (x[3:], y[3:])])
    check_model(module, data, Evaluator(module, *(test or (x, y)), task), as_task(task, data.label_dtype))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"x": X.byte()},
            r"the training examples have inputs \(4,\) uint8 and labels \(\) int64, and the model cannot take them",
        ),
        ({"x": X.double()}, r"inputs \(4,\) float64"),
        ({"x": X[:, :3]}, r"inputs \(3,\) float32"),
        ({"test": (X[:, :3], Y)}, r"the evaluation examples have inputs \(3,\) float32"),
        (
            {"y": torch.tensor([0, 1, 0, 1, 0, 5])},
            r"outputs \(2,\) float32, which do not fit \(the largest label is 5, so 6",
        ),
        ({"test": (X, Y + 1)}, r"evaluation .*the largest label is 2, so 3 outputs are needed and there are 2"),
        (
            {"y": torch.ones(6, 3)},
            r"labels \(3,\) float32, and the model gives outputs \(2,\) float32, which do not fit",
        ),
        (
            {"y": torch.ones(6), "task": Survival()},
            r"labels \(\) float32, and the model gives outputs \(2,\) float32, which do not fit",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence_with_shapes_and_dtypes(given, message):
    with pytest.raises(DataError, match=message) as refused:
        tried(nn.Linear(4, 2), **given)
    assert "\n" not in str(refused.value)


def test_one_output_is_not_enough_for_two_classes():
    with pytest.raises(DataError, match="the largest label is 1, so 2 outputs are needed and there are 1"):
        tried(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)))


def test_a_criterion_of_ones_own_may_have_labels_of_its_own():
    beyond = torch.tensor([0, 1, 0, 1, 0, 255])  # "not known"
    tried(nn.Linear(4, 2), y=beyond, task=Classification(nn.CrossEntropyLoss(ignore_index=255)))


class Restless(nn.Module):
    """Moves whatever a pass can move, in eval mode too; half of it is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 4).requires_grad_(False), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        out: Tensor = self.head(nn.functional.dropout(self.norm(self.body(x)), training=True))
        return out


def test_trying_moves_neither_the_module_nor_any_random_state():
    module = Restless().train()
    data, task = ClientData.separate([(X, Y)]), Classification()
    evaluator = Evaluator(module, X, Y)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    check_model(module, data, evaluator, task)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert (module.training, module.norm.training, module.seen, evaluator._binding.module.seen) == (True, True, 0, 0)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]


def test_a_client_with_one_example_and_batch_statistics_can_be_tried():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    check_model(
        module, ClientData.separate([(X[:1], Y[:1]), (X, Y)]), Evaluator(module, X[:1], Y[:1]), Classification()
    )


def test_images_that_stay_bytes_pass_the_door_of_the_model():
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    module.register_forward_pre_hook(Pixels((0.5,), (0.5,)))
    tried(module, x=torch.zeros(6, 1, 2, 2, dtype=torch.uint8))
