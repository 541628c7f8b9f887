"""Gradients in closed form are those of autograd: every link, every loss, batches that were filled up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from uneven_clients import agree

from offbeat.core.jobs import Job
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.core.strategies.aso_fed import DecayedGradients
from offbeat.core.vector import Layout, flatten
from offbeat.training.client_data import ClientData
from offbeat.training.dense_chain import DenseChain
from offbeat.training.dispatch import Dispatcher
from offbeat.training.tasks import Classification, MultiLabel, Regression
from offbeat.training.trainer import Trainer, Training

SIZES = (37, 24, 50, 33, 12, 3, 1)
WORKS = (LocalWork(epochs=1, lr=0.05), LocalWork(steps=7, lr=0.1), LocalWork(), LocalWork(steps=2), LocalWork(epochs=3))


def mlp(outputs: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Sequential(nn.Linear(7, 6, bias=False), nn.ReLU()), nn.Identity(),
        nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, outputs),
    )  # fmt: skip


def trainer_of(module: nn.Module, y: Any, task: Any = None, training: Training | None = None, **how: Any) -> Trainer:
    torch.manual_seed(0)
    pairs = [(torch.randn(n, 3, 4, dtype=torch.float64), y(n)) for n in SIZES]
    if how.get("shared"):
        x, labels = (torch.cat([pair[part] for pair in pairs]) for part in (0, 1))
        data = ClientData.shared(x, labels, torch.randperm(len(x)).split(SIZES))
    else:
        data = ClientData.separate(pairs)
    for p in module.parameters():  # as large as what they are added to
        nn.init.normal_(p, std=0.5)
    return Trainer(module.double(), data, training or Training(batch=8), task)


def classes(n: int) -> Tensor:
    return torch.randint(0, 4, (n,))


def jobs_of(trainer: Trainer, rule: LocalRule | None = None) -> list[Job]:
    base, works = flatten(trainer.binding.module), [replace(work, rule=rule) for work in WORKS]
    return [Job(i, i, i % 3, base * (1 + 0.1 * i), i, works[i % 5], n, {}, seed=3) for i, n in enumerate(SIZES)]


def check(trainer: Trainer, caplog: Any, rule: LocalRule | None = None, tolerance: float = 1e-12) -> None:
    assert trainer.chain is not None
    jobs = jobs_of(trainer, rule)
    alone = [trainer(job) for job in jobs]
    train = Dispatcher(trainer)
    results = train.train_many(jobs)
    agree(results, alone, tolerance)
    for one, other in zip(results, train.train_many(jobs), strict=True):
        assert torch.equal(one.local, other.local)  # the same bits again
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("shared", [False, True])
def test_a_chain_of_every_link_is_trained_as_autograd_trains_it(shared, caplog):
    check(trainer_of(mlp(), classes, shared=shared), caplog)


def test_so_it_is_with_one_linear_layer_and_without_a_bias(caplog):
    check(trainer_of(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), classes), caplog)
    check(trainer_of(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(12, 4, bias=False)), classes), caplog)


@pytest.mark.parametrize(
    ("y", "outputs", "task"),
    [
        (lambda n: torch.randn(n, dtype=torch.float64), 1, None),
        (lambda n: torch.randn(n, 3), 3, Regression()),  # targets of another precision
        (lambda n: torch.randint(0, 2, (n, 3)), 3, MultiLabel()),
        (classes, 6, Classification()),  # more outputs than classes
    ],
)
def test_so_it_is_with_every_loss(y, outputs, task, caplog):
    check(trainer_of(mlp(outputs), y, task), caplog)


@pytest.mark.parametrize(
    "training",
    [
        Training(batch=8, momentum=0.9, weight_decay=0.01, lr_decay=0.9),
        Training(batch=8, optimizer="adam", lr=0.01, epochs=2),
        Training(batch=8, optimizer="adamw", lr=0.01, weight_decay=0.1),
        Training(batch=64),
        Training(batch=1),
    ],
)
def test_so_it_is_with_every_optimizer_and_any_batch(training, caplog):
    # Adam divides a gradient by its own size, also where it is hardly more than rounding
    check(
        trainer_of(mlp(), classes, training=training), caplog, tolerance=1e-12 if training.optimizer == "sgd" else 1e-9
    )


@pytest.mark.parametrize("rule", [Proximal(mu=0.3), DecayedGradients(beta=0.4, lam=0.5)])
def test_so_it_is_with_a_rule(rule, caplog):
    check(trainer_of(mlp(), classes), caplog, rule)


class Standardised:
    """A hook that makes floats of bytes."""

    by_example = True

    def __call__(self, module: nn.Module, inputs: Any) -> Any:
        return ((inputs[0].double() / 255 - 0.5) / 0.25,)


def test_bytes_become_numbers_at_the_door(caplog):
    torch.manual_seed(0)
    module = mlp().double()
    pairs = [(torch.randint(0, 256, (n, 3, 4), dtype=torch.uint8), classes(n)) for n in SIZES]
    module.register_forward_pre_hook(Standardised())
    check(Trainer(module, ClientData.separate(pairs), Training(batch=8)), caplog)
    Standardised.by_example = False
    try:
        assert Trainer(module, ClientData.separate(pairs), Training(batch=8)).chain is None
    finally:
        Standardised.by_example = True


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4), layer, nn.ReLU(), layer)


def frozen() -> nn.Module:
    module = mlp()
    next(module.parameters()).requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = mlp()
    list(module.children())[1].register_forward_hook(lambda m, _, out: 2 * out)
    return module


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "module",
    [
        tied(),
        frozen(),
        hooked(),
        nn.Sequential(nn.Flatten(), Doubled(12, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Flatten()),  # works on each row of an input
        nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Dropout(0.5)),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Softmax(1)),
    ],
)
def test_what_is_no_chain_is_not_taken_for_one(module):
    trainer = trainer_of(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), classes)
    double = module.double()
    assert DenseChain.for_module(double, Layout.of(double), trainer.task, trainer.data) is None


def test_nor_is_another_loss_or_a_label_that_no_output_stands_for():
    trainer = trainer_of(mlp(4), classes)
    module, layout = trainer.binding.module, trainer.binding.layout
    own = Classification(nn.CrossEntropyLoss(label_smoothing=0.1))
    assert DenseChain.for_module(module, layout, own, trainer.data) is None
    few = trainer_of(mlp(3), classes)  # four classes: cross entropy says what is wrong, and so must a stack
    assert DenseChain.for_module(few.binding.module, few.binding.layout, few.task, few.data) is None


def test_a_client_that_diverges_spoils_nobody_else(caplog):
    trainer = trainer_of(mlp(), classes)
    jobs = jobs_of(trainer)
    jobs[1] = replace(jobs[1], base=jobs[1].base * 1e200, work=LocalWork(steps=7, lr=1e200))
    results = Dispatcher(trainer).train_many(jobs)
    alone = [trainer(job) for job in jobs]
    assert not bool(results[1].local.isfinite().all())
    agree([r for r in results if r.ticket != 1], [r for r in alone if r.ticket != 1])
