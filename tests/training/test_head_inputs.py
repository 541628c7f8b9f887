"""What enters a model's head, looked at from inside a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, ProtocolError
from offbeat.core.jobs import Job
from offbeat.core.protocol import Layout, LocalJob, LocalRule, LocalWork
from offbeat.core.vector import Binding, flatten
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training, head_inputs


class Restless(nn.Module):
    """Everything a pass could move: batch statistics, dropout, a buffer that counts calls, one that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        out: Tensor = self.head(self.drop(self.norm(self.body(x))) + torch.rand(4))
        return out


@dataclass(frozen=True)
class Looks(LocalRule):
    """Asks for features before and after training, and between two steps."""

    def begin(self, job: LocalJob) -> Any:
        assert job.features is not None
        return [job.features(job.base)]

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        assert job.features is not None
        job.features(job.base * 2)
        d = grad(w)
        job.features(job.base * 3)
        return d, carry

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        assert job.features is not None
        (before, y), (after, _) = *carry, job.features(local)
        return {"before": before, "after": after, "y": y}, {}


@dataclass(frozen=True)
class Asks(LocalRule):
    """The same without looking: a direction of its own, so that masks are drawn in the same way."""

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        return grad(w), carry


def job(module: nn.Module, rule: LocalRule, examples: int = 20) -> Job:
    return Job(0, 0, 0, flatten(module), 0, LocalWork(rule=rule), examples, {}, 5)


def data(examples: int = 20) -> ClientData:
    g = torch.Generator().manual_seed(0)
    return ClientData.separate([(torch.randn(examples, 5, generator=g), torch.arange(examples) % 3)], num_classes=3)


def test_they_are_the_inputs_of_the_head_worked_by_hand() -> None:
    module = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2)).double()
    x, y = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64), torch.tensor([1, 0, 1])
    binding = Binding(module)
    model = torch.tensor([3.0, -1, *[0] * 6], dtype=torch.float64)
    seen, labels = head_inputs(binding, None, model, [(x[:2], y[:2]), (x[2:], y[2:])])
    assert seen.tolist() == [[3, -1], [6, -2], [15, -5]]
    assert labels.tolist() == [1, 0, 1]
    assert not seen.requires_grad


def test_looking_moves_nothing() -> None:
    module = Restless()
    trainer = Trainer(module, data(), Training(batch=8, epochs=2, momentum=0.5))
    before = torch.get_rng_state()
    looked, blind = trainer(job(module, Looks())), trainer(job(module, Asks()))
    assert torch.equal(looked.local, blind.local)
    assert looked.steps == blind.steps
    assert torch.equal(torch.get_rng_state(), before)
    assert trainer.binding.module.training


def test_they_are_taken_in_evaluation_mode_at_the_model_asked_for() -> None:
    module = Restless()
    result = Trainer(module, data(), Training(batch=8))(job(module, Looks()))
    x, y = data().take(0, torch.arange(20))
    for name, model in (("before", flatten(module)), ("after", result.local)):
        other = Restless()
        binding = Binding(other)
        binding.load(model)
        other.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            expected = other.norm(other.body(x)) + torch.rand(4)
        torch.testing.assert_close(result.extras[name], expected)
    assert torch.equal(result.extras["y"], y)


def test_only_examples_that_have_arrived_are_looked_at() -> None:
    module = Restless()
    assert len(Trainer(module, data(), Training(batch=8))(job(module, Looks(), examples=9)).extras["before"]) == 9


def test_a_large_client_is_looked_at_in_pieces() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    seen = Trainer(module, data(2500), Training(steps=1))(job(module, Looks(), examples=2500)).extras["before"]
    torch.testing.assert_close(seen, module[0](data(2500).take(0, torch.arange(2500))[0]).detach())


def test_what_goes_wrong_meanwhile_leaves_the_module_as_it_was() -> None:
    binding = Binding(Restless())
    kept = binding.copy()
    with pytest.raises(RuntimeError):
        head_inputs(binding, None, kept * 2, [(torch.zeros(2, 7), torch.zeros(2))])
    assert torch.equal(binding.copy(), kept)
    assert all(m.training for m in binding.module.modules())
    assert not binding.module.head._forward_pre_hooks


def test_a_head_that_is_never_called_or_not_there_is_an_error() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x)
            return out

    binding = Binding(Skips())
    with pytest.raises(ProtocolError, match="1 batches went through the model, and 0 entered its head"):
        head_inputs(binding, None, binding.copy(), [(torch.zeros(2, 5), torch.zeros(2))])
    with pytest.raises(ConfigError, match="unknown module 'hed': did you mean 'head'"):
        head_inputs(binding, "hed", binding.copy(), [])


def test_a_rule_names_the_head_whose_input_its_loss_is_told() -> None:
    @dataclass(frozen=True)
    class Quiet(LocalRule):
        """Makes the features of the module it names small."""

        name: str

        @property
        def head(self) -> str:
            return self.name

        def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor:
            return features.square().mean()

    module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    layout = Layout.of(module)
    for name, moved in (("1", ["0.weight", "0.bias"]), ("2", ["0.weight", "0.bias", "1.weight", "1.bias"])):
        local = Trainer(module, data(), Training(steps=1))(job(module, Quiet(name))).local
        delta = local - flatten(module)
        assert [s.name for s in layout.slices if delta[s.start : s.stop].any()] == moved
