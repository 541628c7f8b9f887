"""A job is a pure function: nothing leaks in from the process, from other jobs, or out to them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalJob, LocalRule, LocalWork
from offbeat.core.vector import flatten
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training


class Stateful(nn.Module):
    """Everything that could leak: dropout, batch statistics, a buffer that does not travel, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        x = self.drop(torch.relu(self.norm(self.body(x))))
        return self.head(torch.relu(self.frozen(x))) * (1 + 0.1 * self.calls)


def world(module: nn.Module | None = None, examples: int = 33) -> tuple[nn.Module, ClientData, Training]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = module or Stateful()
        pairs = [(torch.randn(examples, 5), torch.randint(0, 3, (examples,))) for _ in range(3)]
    return module, ClientData.separate(pairs, num_classes=3), Training(batch=8, epochs=2, momentum=0.5)


def job(module: nn.Module, client: int = 0, index: int = 0, rule: LocalRule | None = None, seed: int = 5) -> Job:
    return Job(
        ticket=client,
        client=client,
        index=index,
        base=flatten(module),
        base_version=0,
        work=LocalWork(rule=rule),
        num_examples=33,
        memory={},
        seed=seed,
    )


def test_the_same_job_gives_the_same_bits_whatever_ran_before_it() -> None:
    module, data, training = world()
    first = Trainer(module, data, training)(job(module)).local
    trainer = Trainer(module, data, training)
    for other in (job(module, client=1), job(module, client=2, index=3, rule=Proximal(mu=0.1)), job(module, seed=9)):
        trainer(other)
        torch.rand(7)  # and whatever the process draws meanwhile
        assert torch.equal(trainer(job(module)).local, first)


def test_global_random_state_is_neither_used_nor_moved() -> None:
    module, data, training = world()
    trainer = Trainer(module, data, training)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        one = trainer(job(module)).local
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert torch.equal(trainer(job(module)).local, one)


def test_each_key_has_its_own_batches_and_dropout() -> None:
    module, data, training = world()
    trainer = Trainer(module, data, training)
    results = [trainer(j).local for j in (job(module), job(module, index=1), job(module, seed=6))]
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_the_ticket_is_not_part_of_the_key() -> None:
    module, data, training = world()
    trainer = Trainer(module, data, training)
    assert torch.equal(trainer(job(module)).local, trainer(replace(job(module), ticket=99)).local)


def test_a_result_is_not_changed_by_later_jobs() -> None:
    module, data, training = world()
    trainer = Trainer(module, data, training)
    result = trainer(job(module))
    kept = result.local.clone()
    trainer(job(module, client=1))
    assert torch.equal(result.local, kept)


def test_a_pickled_trainer_trains_to_the_same_bits() -> None:
    # pickled parameters would no longer be views of the vector: steps would move the vector and not the model
    module, data, training = world()
    trainer = Trainer(module, data, training)
    expected = trainer(job(module)).local
    copy = pickle.loads(pickle.dumps(trainer))
    assert torch.equal(copy(job(module)).local, expected)


def test_training_works_where_gradients_are_switched_off() -> None:
    module, data, training = world()
    trainer = Trainer(module, data, training)
    expected = trainer(job(module)).local
    with torch.no_grad():
        assert torch.equal(trainer(job(module)).local, expected)


@dataclass(frozen=True)
class Breaks(LocalRule):
    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor | None:
        raise ZeroDivisionError


def test_a_job_that_raised_leaves_no_trace() -> None:
    module, data, training = world()
    trainer = Trainer(module, data, training)
    expected = trainer(job(module)).local
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        trainer(job(module, rule=Breaks()))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_pre_hooks for m in trainer.binding.module.modules())
    assert torch.equal(trainer(job(module)).local, expected)


# ---------------------------------------------------------------- gradients at other points


@dataclass(frozen=True)
class Looks(LocalRule):
    """Asks for gradients elsewhere and uses none of them."""

    before: int = 0
    after: int = 0
    again: int = 0  # at w itself

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        here = w.clone()
        for i in range(self.before):
            grad(job.start + i)
        g = grad(w)
        for i in range(self.after):
            grad(w * i)
        for _ in range(self.again):
            assert torch.equal(grad(w), g)  # the same batch, the same dropout, the same point
        assert torch.equal(w, here)
        return g, carry


@pytest.mark.parametrize("rule", [Looks(after=2), Looks(before=1), Looks(before=2, after=1, again=1)])
def test_gradients_elsewhere_move_neither_w_nor_statistics_nor_dropout(rule: Looks) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        plain = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    module, data, training = world(plain)
    trainer = Trainer(module, data, training)
    expected: Result = trainer(job(module))
    seen = trainer(job(module, rule=rule))
    assert torch.equal(seen.local, expected.local)
    assert seen.steps == expected.steps


def test_a_gradient_elsewhere_is_the_gradient_there() -> None:
    # one example x = 1, y = 0, loss w**2: the gradient is 2 at w = 1 and 6 at the point 3
    found: list[float] = []

    @dataclass(frozen=True)
    class Ask(LocalRule):
        def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
            found.extend([grad(w).item(), grad(torch.full_like(w, 3.0)).item(), grad(w).item()])
            return grad(w), carry

    data = ClientData.separate([(torch.ones(1, 1), torch.zeros(1))])
    trainer = Trainer(nn.Linear(1, 1, bias=False), data, Training(steps=1))
    trainer(Job(0, 0, 0, torch.ones(1), 0, LocalWork(rule=Ask()), 1, {}, 0))
    assert found == [2, 6, 2]
