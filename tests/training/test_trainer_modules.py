"""Modules that need care: batch statistics, tied and frozen parameters, losses on features."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offbeat.core import draws
from offbeat.core.draws import epoch_order
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalJob, LocalRule, LocalWork
from offbeat.core.vector import flatten
from offbeat.training import descent
from offbeat.training.client_data import ClientData
from offbeat.training.gradient import find_head
from offbeat.training.trainer import Trainer, Training


def job(base: Tensor, examples: int, rule: LocalRule | None = None) -> Job:
    return Job(
        ticket=0,
        client=0,
        index=0,
        base=base,
        base_version=0,
        work=LocalWork(rule=rule),
        num_examples=examples,
        memory={},
        seed=1,
    )


@pytest.mark.parametrize(
    ("examples", "batch", "merge", "expected"),
    [
        (8, 4, True, [4, 4]),
        (9, 4, False, [4, 4, 1]),
        (9, 4, True, [4, 5]),
        (10, 4, True, [4, 4, 2]),
        (1, 4, True, [1]),  # nothing before it
        (3, 1, True, [1, 1, 1]),  # batches of one were asked for
    ],
)
def test_only_a_last_batch_of_one_is_merged(examples: int, batch: int, merge: bool, expected: list[int]) -> None:
    assert descent.batch_sizes(examples, batch, merge) == expected


def test_steps_cycle_through_reshuffled_epochs() -> None:
    trainer = Trainer(
        nn.Linear(2, 2), ClientData.separate([(torch.randn(5, 2), torch.arange(5) % 2)]), Training(batch=2)
    )
    plan = trainer.make_plan(replace(job(flatten(trainer.binding.module), 5), work=LocalWork(steps=7)))
    epochs = [(sorted(positions.tolist()), sizes) for positions, sizes, _ in plan.epochs(0)]
    assert [sizes for _, sizes in epochs] == [[2, 2, 1], [2, 2, 1], [2]]
    assert epochs[0][0] == epochs[1][0] == [0, 1, 2, 3, 4]
    orders = [positions.tolist() for positions, _, _ in plan.epochs(0)]
    assert orders[0] != orders[1]


def test_a_trained_job_equals_a_plain_torch_loop_over_the_same_batches() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    x, y = torch.randn(21, 4, dtype=torch.float64), torch.randint(0, 3, (21,))
    base = flatten(module)
    training = Training(lr=0.1, momentum=0.9, weight_decay=0.01, batch=5, epochs=3)
    local = Trainer(module, ClientData.separate([(x, y)]), training)(job(base, 21)).local
    key = draws.bits(1, "batches", 0, 0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for epoch in range(3):
        order = torch.from_numpy(epoch_order(key, epoch, 21))
        for rows in order.split([5, 5, 5, 6]):  # 21 = 4 * 5 + 1: merged
            optimizer.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
    torch.testing.assert_close(local, flatten(module), rtol=1e-12, atol=1e-14)


def test_training_runs_in_train_mode_even_if_the_module_came_in_eval_mode() -> None:
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Dropout(1.0)).eval()
    data = ClientData.separate([(torch.ones(1, 1), torch.zeros(1))])
    # dropout of everything leaves no gradient; in eval mode w = 1 would move to 1 - 0.1 * 2
    assert Trainer(module, data, Training(lr=0.1, steps=1))(job(torch.ones(1), 1)).local.item() == 1


def test_gathering_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(4, 3)
    data = ClientData.separate([(torch.randn(50, 4), torch.randint(0, 3, (50,)))])
    whole = Trainer(module, data, Training(batch=7))(job(flatten(module), 50)).local
    monkeypatch.setattr("offbeat.training.trainer._MAX_GATHERED_VALUES", 1)
    assert torch.equal(Trainer(module, data, Training(batch=7))(job(flatten(module), 50)).local, whole)


class Squared(nn.Module):
    """w * w * x through two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.second = nn.Linear(1, 1, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_tied_parameters_travel_once_and_feel_both_gradients() -> None:
    data = ClientData.separate([(torch.ones(1, 1), torch.zeros(1))])
    # loss w**4 at w = 1: gradient 4, w = 1 - 0.1 * 4
    local = Trainer(Squared(), data, Training(lr=0.1, steps=1))(job(torch.ones(1), 1)).local
    torch.testing.assert_close(local, torch.tensor([0.6]))


def test_frozen_parameters_stay_and_unused_ones_do_not_move() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(1, 1, bias=False)
            self.unused = nn.Parameter(torch.ones(2))
            self.frozen = nn.Parameter(torch.full((1,), 2.0), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) * self.frozen

    data = ClientData.separate([(torch.ones(1, 1), torch.zeros(1))])
    trainer = Trainer(Odd(), data, Training(lr=0.1, steps=1))
    assert [s.name for s in trainer.binding.layout.slices] == ["unused", "used.weight"]
    # loss (2 w)**2 at w = 1: gradient 8, w = 1 - 0.8
    local = trainer(job(torch.ones(3), 1)).local
    torch.testing.assert_close(local, torch.tensor([1.0, 1.0, 0.2]))


@dataclass(frozen=True)
class MeanFeature(LocalRule):
    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor | None:
        return features.mean()


@dataclass(frozen=True)
class NoLoss(LocalRule):
    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor | None:
        return None


def two_slopes() -> tuple[nn.Module, ClientData]:
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Identity())
    return module, ClientData.separate([(torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 2.0]))])


def test_a_rules_own_loss_sees_what_enters_the_head() -> None:
    module, data = two_slopes()
    trainer = Trainer(module, data, Training(lr=0.1, steps=1))
    # features a x: their mean has gradient mean(x) = 1.5 in a and none in b
    local = trainer(job(torch.ones(2), 2, MeanFeature())).local
    torch.testing.assert_close(local, torch.tensor([0.85, 1.0]))


def test_a_rule_whose_loss_is_none_keeps_the_tasks() -> None:
    module, data = two_slopes()
    trainer = Trainer(module, data, Training(lr=0.1, steps=1))
    # mean((a b x - 2)**2) at a = b = 1: 5 - 6 = -1 in both
    for rule in (None, NoLoss()):
        torch.testing.assert_close(trainer(job(torch.ones(2), 2, rule)).local, torch.tensor([1.1, 1.1]))


def test_the_head_is_the_last_module_with_parameters_of_its_own() -> None:
    module, _ = two_slopes()
    assert find_head(module) is module[1]
