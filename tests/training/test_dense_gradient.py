"""Gradients without autograd have the bits of autograd, and what they are not made for is left to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_dense_chain import Doubled, classes, jobs_of, mlp, trainer_of
from torch import Tensor, nn

from offbeat.core.jobs import Job
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.core.strategies.aso_fed import DecayedGradients
from offbeat.core.vector import Binding, flatten
from offbeat.training.client_data import ClientData
from offbeat.training.gradient import DenseGradient, Gradients
from offbeat.training.tasks import Classification, Regression
from offbeat.training.trainer import Trainer, Training

CHAINS = {
    "a linear layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4)),
    "without a bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4, bias=False)),
    "a layer by itself": lambda: nn.Linear(12, 4),
    "what starts with a link": lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(12, 4)),
    "every link": mlp,
}


@pytest.fixture(autouse=True)
def nothing_tried_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.training.gradient._matches_autograd", {})


def gradients_of(module: nn.Module, task: Any = None) -> Gradients:
    return Gradients(Binding(module), Classification() if task is None else task)


def with_graph(trainer: Trainer) -> Trainer:
    trainer._gradients._dense = None
    return trainer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CHAINS)
def test_a_gradient_has_the_bits_of_autograd(name: str, dtype: torch.dtype) -> None:
    module = CHAINS[name]().to(dtype)
    gradients = gradients_of(module)
    for examples in (1, 2, 3, 7, 8, 16, 31, 64, 65, 200):
        x, y = torch.randn(examples, 12, dtype=dtype), torch.randint(0, 4, (examples,))
        loss = nn.functional.cross_entropy(module(x), y)
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
        assert torch.equal(gradients.at_weights(x, y), expected)
    assert gradients._dense is not None


def test_so_it_is_for_sure_answers_and_for_labels_that_count_for_nothing() -> None:
    module = CHAINS["a linear layer"]()
    gradients = gradients_of(module)
    y = torch.tensor([0, -100, 3, 1, -100])
    for large in (1.0, 1e3, 1e-6):
        x = large * torch.randn(5, 3, 4)
        loss = nn.functional.cross_entropy(module(x), y)
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
        assert torch.equal(gradients.at_weights(x, y), expected)
    assert gradients._dense is not None


@pytest.mark.parametrize("rule", [None, Proximal(mu=0.1), DecayedGradients(beta=0.4, lam=0.5)])
@pytest.mark.parametrize(
    "training",
    [Training(batch=8), Training(batch=8, momentum=0.9, weight_decay=0.01), Training(batch=8, optimizer="adam")],
)
def test_whole_jobs_have_the_bits_of_autograd(rule: LocalRule | None, training: Training) -> None:
    ours = trainer_of(mlp(), classes, training=training)
    theirs = with_graph(trainer_of(mlp(), classes, training=training))
    for job in jobs_of(ours, rule):
        mine, other = ours(job), theirs(job)
        assert torch.equal(mine.local, other.local)
        assert mine.memory.keys() == other.memory.keys()
        assert all(torch.equal(mine.memory[name], other.memory[name]) for name in mine.memory)
    assert ours._gradients._dense is not None


def test_a_gradient_is_its_own() -> None:
    gradients = gradients_of(CHAINS["a linear layer"]())
    x, y = torch.randn(8, 12), torch.randint(0, 4, (8,))
    first = gradients.at_weights(x, y)  # tried here, against autograd
    kept = gradients.at_weights(x, y)
    gradients.at_weights(torch.randn(8, 12), y)
    assert torch.equal(kept, first)


def linear(**how: Any) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4, **how))


def frozen() -> nn.Module:
    module = linear()
    module[1].bias.requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = linear()
    module[1].register_forward_hook(lambda m, inputs, out: 2 * out)
    return module


def before() -> nn.Module:
    module = linear()
    module.register_forward_pre_hook(lambda m, inputs: (2 * inputs[0],))
    return module


def own_forward() -> nn.Module:
    module = linear()
    module[1].forward = lambda x: 2 * nn.functional.linear(x, module[1].weight, module[1].bias)
    return module


@pytest.mark.parametrize(
    "module",
    [
        frozen(),
        hooked(),
        before(),
        own_forward(),
        Doubled(12, 4),
        nn.Sequential(nn.Linear(12, 4), nn.Dropout()),
        nn.Sequential(nn.Linear(12, 1), nn.Tanh(), nn.Linear(1, 4)),  # which product autograd takes depends on strides
    ],
    ids=["frozen", "hooked", "before", "own forward", "a class of its own", "dropout", "of width one"],
)
def test_any_other_module_is_left_to_autograd(module: nn.Module) -> None:
    assert DenseGradient.for_model(Binding(module), Classification()) is None


def test_any_other_loss_and_precision_is_left_to_autograd() -> None:
    def focal(outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.sum()

    assert DenseGradient.for_model(Binding(linear()), Classification(focal)) is None
    assert DenseGradient.for_model(Binding(linear()), Regression()) is None
    assert DenseGradient.for_model(Binding(linear().bfloat16()), Classification()) is None


def test_examples_it_does_not_know_are_left_to_autograd() -> None:
    module = nn.Linear(12, 4)  # of series too, which nobody flattens
    gradients = gradients_of(module)
    x, y = torch.randn(5, 12, 12).movedim(2, 1), torch.randint(0, 12, (5, 4))
    loss = nn.functional.cross_entropy(module(x), y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
    assert torch.equal(gradients.at_weights(x, y), expected)
    learned = torch.randn(5, 12, requires_grad=True)  # examples somebody learns
    assert torch.isfinite(gradients.at_weights(learned, torch.zeros(5, dtype=torch.int64))).all()
    with pytest.raises(RuntimeError):  # as torch has it
        gradients.at_weights(torch.randn(5, 12, dtype=torch.float64), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(IndexError):
        gradients.at_weights(torch.randn(5, 12), torch.full((5,), 4))


def test_where_its_bits_are_others_autograd_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = gradients_of(linear())
    right = DenseGradient._error
    monkeypatch.setattr(DenseGradient, "_error", lambda self, out, y: right(self, out, y).nextafter(torch.tensor(1.0)))
    x, y = torch.randn(8, 12), torch.randint(0, 4, (8,))
    first = gradients.at_weights(x, y)
    assert gradients._dense is None
    assert torch.equal(gradients.at_weights(x, y), first)


def test_the_answer_is_the_same_whatever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of one run, of which one begins with a batch that hides the difference."""
    right = DenseGradient._error

    def of_many(self: DenseGradient, out: Tensor, y: Tensor) -> Tensor:
        return right(self, out, y) * (1 if len(out) < 8 else 1 + 2**-20)

    monkeypatch.setattr(DenseGradient, "_error", of_many)
    for first in (2, 64):
        gradients = gradients_of(linear())
        before = gradients.w.clone()
        gradients.at_weights(torch.randn(first, 12), torch.randint(0, 4, (first,)))
        assert gradients._dense is None
        assert torch.equal(gradients.w, before)


def test_the_answer_is_the_same_without_gradients_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule may ask for its gradient where torch keeps no graph, in one process before anything else."""
    x, y = torch.randn(8, 12), torch.randint(0, 4, (8,))
    gradients = gradients_of(mlp())
    expected = gradients._by_autograd(x, y)
    with torch.no_grad():
        assert torch.equal(gradients.at_weights(x, y), expected)
    assert gradients._dense is not None
    tried: list[int] = []
    monkeypatch.setattr(Gradients, "_is_exact", lambda self, tape: tried.append(1))
    gradients_of(mlp()).at_weights(x, y)
    assert not tried  # one of its form was


def test_a_product_is_never_put_where_a_processor_might_sum_it_otherwise() -> None:
    """Behind 12 x 7 weights and 7 biases the next begin at an odd place; torch's own tensors begin at multiples of
    64 bytes.
    """
    tape = DenseGradient.for_model(Binding(mlp()), Classification())
    assert tape is not None
    assert all(grad.data_ptr() % 64 == 0 for grad in tape._grads)


def test_it_is_not_taken_for_tried_where_the_first_batch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = gradients_of(linear())
    monkeypatch.setattr(DenseGradient, "_error", lambda self, out, y: torch.zeros_like(out))
    with pytest.raises(IndexError):
        gradients.at_weights(torch.randn(5, 12), torch.full((5,), 4))
    x, y = torch.randn(8, 12), torch.randint(0, 4, (8,))
    assert gradients.at_weights(x, y).any()
    assert gradients._dense is None


def test_where_it_fails_itself_autograd_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: DenseGradient, out: Tensor, y: Tensor) -> Tensor:
        raise RuntimeError

    gradients = gradients_of(linear())
    monkeypatch.setattr(DenseGradient, "_error", fails)
    x, y = torch.randn(8, 12), torch.randint(0, 4, (8,))
    assert torch.equal(gradients.at_weights(x, y), gradients.at_weights(x, y))


def test_a_hook_on_all_modules_is_called_at_every_step() -> None:
    ours = trainer_of(linear(), classes)
    ours(jobs_of(ours)[0])  # tried without it
    called: list[object] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, inputs, out: called.append(m))
    try:
        steps = ours(jobs_of(ours)[0]).steps
    finally:
        handle.remove()
    assert sum(isinstance(m, nn.Linear) for m in called) == steps


def test_a_hook_on_a_parameter_is_called_at_every_step() -> None:
    given = trainer_of(linear(), classes)
    ours = Trainer(given.binding, given.data, Training(batch=8))  # a binding is taken over as it is
    job = jobs_of(ours)[0]
    ours(job)
    given.binding.params[0].register_hook(lambda g: 0 * g)
    weights = ours(job).local[:-4]
    assert torch.equal(weights, job.base[:-4])


def test_autocast_is_left_to_autograd() -> None:
    x, y = torch.randn(20, 12), torch.randint(0, 4, (20,))
    ours = Trainer(linear(), ClientData.separate([(x, y)]), Training(batch=8))
    job = Job(0, 0, 0, flatten(ours.binding.module), 0, LocalWork(), 20, {}, seed=3)
    exact = ours(job).local
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = ours(job).local, with_graph(ours)(job).local
    assert torch.equal(mine, theirs)
    assert not torch.equal(mine, exact)
