"""Every client on its own examples, groups on all of theirs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offbeat.core.errors import ConfigError
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import Evaluator, Survey, Surveyor


def thresholds() -> tuple[Evaluator, ClientData]:
    """A model says 1 where x > 0 (with the vector (0, 1, 0, 0): logits 0 and x). Client 0: 1 of 2 right, client 1: 3
    of 4.
    """
    pairs = [
        (torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0])),
        (torch.tensor([[1.0], [-1.0], [-2.0], [3.0]]), torch.tensor([1, 0, 0, 0])),
    ]
    x, y = pairs[0]
    return Evaluator(nn.Linear(1, 2), x, y), ClientData.separate(pairs)


MODEL = torch.tensor([0.0, 1.0, 0.0, 0.0])


def test_clients_have_their_own_values_and_groups_their_examples_together():
    evaluator, data = thresholds()
    survey = Surveyor(evaluator, data, {"slowest": [1]}, examples=1000)
    clients, groups = survey(lambda client: MODEL)
    assert {client: values["acc"] for client, values in clients.items()} == {0: 0.5, 1: 0.75}
    assert groups["acc/all"] == pytest.approx(4 / 6)  # of examples, not of clients
    assert groups["acc/slowest"] == 0.75
    # all: class 0 is recognised in 2 of 4, class 1 in 2 of 2; the mean of the clients' own would be (1/2 + 5/6) / 2
    assert groups["balanced_acc/all"] == pytest.approx(3 / 4)


def test_each_client_may_have_a_model_of_its_own():
    evaluator, data = thresholds()
    clients, _ = Surveyor(evaluator, data, {}, examples=1000)(lambda client: MODEL if client else -MODEL)
    # client 0: now the other one is right
    assert {client: values["acc"] for client, values in clients.items()} == {0: 0.5, 1: 0.75}


def test_no_more_examples_are_taken_than_allowed_evenly_spaced():
    evaluator, data = thresholds()
    clients, _ = Surveyor(evaluator, data, {}, examples=2)(lambda client: MODEL)
    assert clients[1]["acc"] == 1.0  # its first and third


@pytest.mark.parametrize(("setting", "value"), [("every", -1), ("examples", -1), ("active", 0.0), ("active", 1.0)])
def test_impossible_surveys_are_refused(setting, value):
    with pytest.raises(ConfigError, match=rf"survey\.{setting} = {value}"):
        Survey(**{setting: value})
