"""Jobs worked by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.jobs import Job
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalJob, LocalRule, LocalWork, Phase
from offbeat.core.vector import Binding, flatten
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training

# Two examples, (1, 2) and (2, 2). With the model w x + b and the mean squared error the gradient is
#   d/dw = mean(2 x (w x + b - y)) = 5 w + 3 b - 6,     d/db = mean(2 (w x + b - y)) = 3 w + 2 b - 4.
LINE = ClientData.separate(
    [(torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([2.0, 2.0], dtype=torch.float64))]
)


def slope() -> nn.Module:
    return nn.Linear(1, 1, bias=False).double()


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def job(base: Tensor, work: LocalWork = LocalWork(), **changes: Any) -> Job:
    first = Job(ticket=7, client=0, index=0, base=base, base_version=0, work=work, num_examples=2, memory={}, seed=1)
    return replace(first, **changes)


def test_two_steps_with_momentum() -> None:
    trainer = Trainer(slope(), LINE, Training(lr=0.1, momentum=0.5, steps=2))
    base = vector(0)
    result = trainer(job(base))
    # g = 5*0 - 6 = -6, v = -6, w = 0.6;   g = 5*0.6 - 6 = -3, v = 0.5*-6 - 3 = -6, w = 1.2
    torch.testing.assert_close(result.local, vector(1.2), rtol=1e-14, atol=0)
    assert (result.ticket, result.steps, result.num_examples) == (7, 2, 2)
    assert base.item() == 0
    assert result.extras == result.memory == {}


def test_weight_decay_pulls_towards_zero() -> None:
    trainer = Trainer(slope(), LINE, Training(lr=0.1, weight_decay=0.5, steps=1))
    # g = 5 - 6 + 0.5*1 = -0.5
    torch.testing.assert_close(trainer(job(vector(1))).local, vector(1.05), rtol=1e-14, atol=0)


def test_the_optimizer_is_fresh_in_every_job() -> None:
    trainer = Trainer(slope(), LINE, Training(lr=0.1, momentum=0.9, steps=1))
    trainer(job(vector(0)))
    # a velocity kept from the first job would add 0.1 * 0.9 * 6
    torch.testing.assert_close(trainer(job(vector(0), index=1)).local, vector(0.6), rtol=1e-14, atol=0)


def test_the_rate_decays_with_the_version_of_the_base() -> None:
    trainer = Trainer(slope(), LINE, Training(lr=0.8, lr_decay=0.5, steps=1))
    # 0.8 * 0.5**3 = 0.1, times 6
    torch.testing.assert_close(trainer(job(vector(0), base_version=3)).local, vector(0.6), rtol=1e-14, atol=0)
    # a rate named by the work is taken as it is
    local = trainer(job(vector(0), LocalWork(lr=0.2), base_version=3)).local
    torch.testing.assert_close(local, vector(1.2), rtol=1e-14, atol=0)


def test_the_proximal_rule_pulls_back_to_the_base() -> None:
    trainer = Trainer(slope(), LINE, Training(lr=0.1, steps=2))
    # w = 0.6;   g = -3 + 1 * (0.6 - 0) = -2.4, w = 0.84
    local = trainer(job(vector(0), LocalWork(rule=Proximal(mu=1.0)))).local
    torch.testing.assert_close(local, vector(0.84), rtol=1e-14, atol=0)


def test_work_overrides_the_training_section() -> None:
    trainer = Trainer(slope(), LINE, Training(lr=0.1, epochs=5, batch=1))
    assert trainer(job(vector(0))).steps == 10
    assert trainer(job(vector(0), LocalWork(steps=3))).steps == 3
    assert trainer(job(vector(0), LocalWork(epochs=2))).steps == 4


def test_one_epoch_unless_told_otherwise() -> None:
    assert Trainer(slope(), LINE, Training(batch=1))(job(vector(0))).steps == 2


@dataclass(frozen=True)
class BiasThenWeight(LocalRule):
    def phases(self, work: LocalWork) -> tuple[Phase, ...]:
        return (Phase(steps=1, lr=0.1, slices=("bias",)), Phase(epochs=1, lr=0.2, slices=("weight",)))


def test_phases_move_their_own_slices_at_their_own_rate() -> None:
    trainer = Trainer(nn.Linear(1, 1).double(), LINE, Training(steps=9))
    work = LocalWork(rule=BiasThenWeight())
    result = trainer(job(vector(0, 0), work))
    # (weight, bias): d/db = -4, b = 0.4;   then d/dw = 3*0.4 - 6 = -4.8, w = 0.96
    torch.testing.assert_close(result.local, vector(0.96, 0.4), rtol=1e-14, atol=0)
    assert result.steps == trainer.count_steps(0, work, 2) == 2


@dataclass(frozen=True)
class CountSteps(LocalRule):
    """Adds the number of its steps to what it remembers."""

    memory = ("seen",)

    def begin(self, job: LocalJob) -> Any:
        return 0

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        return grad(w), carry + 1

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"delta": local - job.base}, {"seen": job.memory["seen"] + carry}


def test_extras_and_memory_come_from_the_rule() -> None:
    trainer = Trainer(slope(), LINE, Training(lr=0.1, momentum=0.5, steps=2))
    first = trainer(job(vector(0), LocalWork(rule=CountSteps())))
    torch.testing.assert_close(first.extras["delta"], vector(1.2), rtol=1e-14, atol=0)
    assert first.memory["seen"].tolist() == [2]
    second = trainer(job(vector(0), LocalWork(rule=CountSteps()), memory=first.memory))
    assert second.memory["seen"].tolist() == [4]
    assert first.memory["seen"].tolist() == [2]


def test_only_what_has_arrived_is_seen() -> None:
    x, y = torch.randn(10, 3), torch.randn(10)
    later = x.clone()
    later[6:] += 100
    module, training = nn.Linear(3, 1), Training(batch=4, epochs=2)
    locals_ = [
        Trainer(module, ClientData.separate([(inputs, y)]), training)(job(flatten(module), num_examples=6)).local
        for inputs in (x, later)
    ]
    assert torch.equal(*locals_)


@pytest.mark.parametrize("examples", [0, 3])
def test_more_examples_than_a_client_holds_are_an_error(examples: int) -> None:
    trainer = Trainer(slope(), LINE)
    with pytest.raises(DataError, match=f"client 0 cannot train on {examples} examples: it has 2"):
        trainer(job(vector(0), num_examples=examples))
    with pytest.raises(DataError, match="no data for client 4"):
        trainer.count_steps(4, LocalWork(), 1)


def test_a_module_is_copied_and_a_binding_taken_over() -> None:
    module = slope()
    module.weight.data.fill_(3)
    Trainer(module, LINE)(job(vector(0)))
    assert flatten(module).tolist() == [3]
    binding = Binding(module)
    assert Trainer(binding, LINE).binding is binding


@settings(max_examples=60, deadline=None)
@given(
    examples=st.integers(2, 40),
    batch=st.integers(2, 12),
    steps=st.none() | st.integers(1, 15),
    epochs=st.integers(1, 3),
    norm=st.booleans(),
    phased=st.booleans(),
)
def test_steps_told_before_are_the_steps_taken(
    examples: int, batch: int, steps: int | None, epochs: int, norm: bool, phased: bool
) -> None:
    @dataclass(frozen=True)
    class Twice(LocalRule):
        def phases(self, work: LocalWork) -> tuple[Phase, ...]:
            return (Phase(epochs=2), Phase(steps=work.steps, epochs=work.epochs))

    module = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2) if norm else nn.Identity(), nn.Linear(2, 1))
    x = torch.arange(float(examples)).unsqueeze(1)
    trainer = Trainer(module, ClientData.separate([(x, x.squeeze(1))]), Training(lr=1e-9, batch=batch, steps=steps))
    work = LocalWork(rule=Twice() if phased else None, epochs=epochs if steps is None else None)
    result = trainer(job(flatten(module), work, num_examples=examples))
    assert result.steps == trainer.count_steps(0, work, examples)
    if norm:
        assert result.local[-1].item() == result.steps  # num_batches_tracked


def test_clients_of_one_example_are_named_where_the_model_needs_two() -> None:
    module, plain = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.BatchNorm1d(4), nn.Linear(4, 2)), nn.Linear(3, 2)
    pairs = [(torch.randn(n, 3), torch.zeros(n, dtype=torch.int64)) for n in (1, 2, 5, 1)]
    before = torch.get_rng_state()
    with pytest.raises(
        DataError, match=r"2 clients have \(0, 3\) one example, on which a model with BatchNorm cannot train"
    ):
        Trainer(module, ClientData.separate(pairs))
    with pytest.raises(DataError, match="client 3 has one example"):
        Trainer(module, ClientData.separate(dict(enumerate(pairs[1:], start=1))))
    Trainer(module, ClientData.separate(pairs[1:3]))
    Trainer(plain, ClientData.separate(pairs))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_picture_has_batch_statistics_and_trying_it_leaves_no_trace() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    trainer = Trainer(module, ClientData.separate([(torch.randn(1, 1, 4, 4), torch.tensor([1]))]))
    assert torch.equal(trainer.binding.copy(), flatten(module))
    assert trainer(job(flatten(module), num_examples=1)).steps == 1


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"optimizer": "adm"}, "unknown optimizer 'adm': did you mean 'adam'"),
        ({"lr": 0.0}, "training.lr = 0.0: must be positive"),
        ({"lr": float("inf")}, "training.lr = inf"),
        ({"lr_decay": 0.0}, "training.lr_decay = 0.0"),
        ({"lr_decay": 1.5}, r"training.lr_decay = 1.5: must lie in \(0, 1\]"),
        ({"momentum": 1.0}, r"training.momentum = 1.0: must lie in \[0, 1\)"),
        ({"momentum": 0.9, "optimizer": "adam"}, "training.momentum = 0.9: adam has no momentum"),
        ({"weight_decay": -1.0}, "training.weight_decay = -1.0"),
        ({"batch": 0}, "training.batch = 0"),
        ({"steps": 0}, "training.steps = 0"),
        ({"epochs": 0}, "training.epochs = 0"),
        ({"steps": 3, "epochs": 2}, "training: steps = 3 and epochs = 2: give one of them"),
    ],
)
def test_impossible_training_is_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Training(**settings_)


def test_a_training_section_can_be_changed_to_steps() -> None:
    # the default of one epoch is not written into the value, so it does not clash with steps given later
    assert replace(Training(), steps=4).steps == 4
