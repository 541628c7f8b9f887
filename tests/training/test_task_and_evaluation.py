"""Losses, metrics, and the evaluator that adds them up."""

from __future__ import annotations

import pickle
from math import log

import pytest
import torch
from torch import nn

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.vector import flatten
from offbeat.training.evaluation import Evaluator
from offbeat.training.tasks import Classification, Regression, Task, as_task


def test_the_dtype_of_the_labels_decides_the_task() -> None:
    assert as_task(None, torch.int64) == Classification()
    assert as_task(None, torch.float32) == Regression()
    assert isinstance(Classification(), Task)


def test_a_loss_of_the_users_own_replaces_the_tasks_and_keeps_the_metrics() -> None:
    loss = nn.L1Loss()
    task = as_task(loss, torch.float32)
    assert task == Regression(loss)
    # |1 - 3| and |2 - 2| have mean 1; the squared error would be 2
    assert task.loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])).item() == 1


def test_metrics_say_which_way_is_better() -> None:
    assert {m.name: m.higher_is_better for m in Classification.metrics[:2]} == {"loss": False, "acc": True}
    assert {m.name: m.higher_is_better for m in Regression.metrics} == {"loss": False, "mae": False, "smape": False}


def test_classification_rows_by_hand() -> None:
    # logits (ln 3, 0): probabilities 3/4, 1/4. Labels 0, 0, 1: losses ln 4/3, ln 4/3, ln 4; two of three are right
    logits = torch.tensor([[log(3), 0.0]] * 3, dtype=torch.float64)
    rows = Classification().rows(logits, torch.tensor([0, 0, 1]))
    # examples; sums of losses and hits; right, said and true for each class: all three are said to be class 0
    by_hand = [3, 2 * log(4 / 3) + log(4), 2, 2, 0, 3, 0, 2, 1]
    torch.testing.assert_close(rows, torch.tensor([by_hand], dtype=torch.float64))


def test_one_column_of_outputs_is_compared_with_its_own_target_only() -> None:
    # broadcasting (2, 1) against (2,) would give four errors and a loss of 2
    outputs, y = torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 3.0])
    assert Regression().loss(outputs, y).item() == 0
    with pytest.raises(DataError, match=r"outputs of shape \(2, 2\) do not fit targets of shape \(2,\)"):
        Regression().loss(torch.ones(2, 2), y)


def line(w: float, b: float) -> nn.Module:
    module = nn.Linear(1, 1).double()
    module.weight.data.fill_(w)
    module.bias.data.fill_(b)
    return module


X = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
Y = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("batch", [1, 2, 3, 1024])
def test_an_evaluator_averages_over_examples_whatever_the_batch(batch: int) -> None:
    # outputs x + 1 = 1, 2, 3 against 0: mse 14/3, mae 2; averaging over batches of 2 and 1 would give 5.75
    result = Evaluator(line(9, 9), X, Y, batch=batch)(torch.tensor([1.0, 1.0], dtype=torch.float64))
    # against 0 every error is as large as can be: |y'| / (|y'| / 2) = 2
    assert result == pytest.approx({"loss": 14 / 3, "mae": 2.0, "smape": 2.0}, rel=1e-14)


def test_evaluation_runs_in_eval_mode_and_moves_nothing() -> None:
    module = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    vector = flatten(module)
    evaluator = Evaluator(module, X, Y)
    state = torch.get_rng_state()
    first = evaluator(vector)
    assert evaluator(vector) == first
    assert torch.equal(flatten(evaluator._binding.module), vector)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training


def test_an_evaluator_does_not_share_the_module_it_was_made_from() -> None:
    module = line(2, 0)
    evaluator = Evaluator(module, X, Y)
    evaluator(torch.tensor([5.0, 5.0], dtype=torch.float64))
    assert flatten(module).tolist() == [2, 0]


def test_an_evaluator_survives_pickling() -> None:
    evaluator = Evaluator(line(0, 0), X, Y)
    vector = torch.tensor([1.0, 1.0], dtype=torch.float64)
    assert pickle.loads(pickle.dumps(evaluator))(vector) == evaluator(vector)


def test_evaluation_data_is_checked() -> None:
    with pytest.raises(DataError, match="evaluation data: 3 inputs but 2 labels"):
        Evaluator(line(0, 0), X, Y[:2])
    with pytest.raises(ConfigError, match="evaluation batch = 0"):
        Evaluator(line(0, 0), X, Y, batch=0)
