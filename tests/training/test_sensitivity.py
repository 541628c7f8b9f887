"""FedPSA's probe: sensitivities worked by hand, modules that need care, and nothing left behind."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offbeat.core.errors import ConfigError
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.fedpsa.sketch import GaussianSketch, Sketched
from offbeat.core.vector import Layout, flatten
from offbeat.training import sensitivity
from offbeat.training.client_data import ClientData
from offbeat.training.sensitivity import Probe, Sensitivity, make_probe, noise_batch, real_batch
from offbeat.training.tasks import Classification, Regression
from offbeat.training.trainer import Trainer, Training


def half_squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y).square().mean() / 2


def worked(fisher: sensitivity.Fisher = "sample") -> Sensitivity:
    """θ ∈ R³; D_b: x = (1,0,1), y = 1 and x = (0,1,1), y = 0; loss ½(θ·x - y)²."""
    x = torch.tensor([[1.0, 0, 1], [0, 1, 1]], dtype=torch.float64)
    return Sensitivity(nn.Linear(3, 1, bias=False).double(), x, torch.tensor([1.0, 0]).double(), half_squared, fisher)


@pytest.mark.parametrize(
    ("theta", "expected"),
    [
        # residuals r = (θ1+θ3-1, θ2+θ3); g = (r1, r2, r1+r2)/2, F = (r1², r2², r1²+r2²)/2
        ([1, 1, 1], [0.25, 0, 0.25]),  # r = (1, 2): (.5-.25, 1-1, 1.5-1.25)
        ([1.5, 1, 1], [0.140625, 0, 0.1875]),  # r = (1.5, 2): (1.125-1.265625, 1-1, 1.75-1.5625)
        ([1, 0.5, 1], [0.25, 0.234375, 0.4375]),  # r = (1, 1.5): (.5-.25, .375-.140625, 1.25-.8125)
        ([1.25, 0.75, 1], [0.1708984375, 0.2255859375, 0.34375]),  # r = (1.25, 1.75)
        ([1.25, 0.75, 0.5], [0.2490234375, 0.2490234375, 0.3671875]),  # r = (.75, 1.25)
        ([1.45, 0.95, 1], [0.053876563, 0.068310937, 0.22375]),  # r = (1.45, 1.95)
    ],
)
def test_the_worked_sensitivities(theta: list[float], expected: list[float]) -> None:
    assert worked()(torch.tensor(theta, dtype=torch.float64)).tolist() == pytest.approx(expected, abs=1e-9)


def test_with_the_batch_fisher_the_mean_gradient_is_squared() -> None:
    # at (1, 1, 1): g = (.5, 1, 1.5), F = g² = (.25, 1, 2.25); |.5-.125|, |1-.5|, |1.5-1.125|
    assert worked("batch")(torch.ones(3, dtype=torch.float64)).tolist() == [0.375, 0.5, 0.375]


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    assert worked().gradient(torch.ones(3, dtype=torch.float64)).tolist() == [0.5, 1, 1.5]


def by_hand(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """|g∘θ - ½F∘θ²| with plain torch, sample by sample, in eval mode."""
    params = [p for p in module.eval().parameters() if p.requires_grad]
    rows = []
    for i in range(len(x)):
        loss = F.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    g, theta = torch.stack(rows), torch.cat([p.detach().flatten() for p in params])
    return (g.mean(0) * theta - g.square().mean(0) * theta.square() / 2).abs()


class Branches(nn.Module):
    """Looks at its values: vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum().item() > 0 else self.layer(-x)


class Counts(nn.Module):
    """Counts its calls, in eval mode too, in a buffer that travels and in one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.hidden.add_(1)
        return self.layer(x) * (1 + self.hidden - self.hidden)


class Odd(nn.Module):
    """A weight used twice, a frozen one, one nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.full((1,), 2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))) * self.frozen


def normed() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    module[1].running_mean.copy_(torch.arange(6.0))
    module[1].running_var.fill_(4.0)
    return module


MODULES: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 5, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3)
    ),
    "a layer": lambda: nn.Linear(4, 3),
    "a chain": lambda: nn.Sequential(
        nn.Linear(4, 6),
        nn.Tanh(),
        nn.Linear(6, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 6),
        nn.Sigmoid(),
        nn.Linear(6, 3),
    ),
    "statistics and dropout": normed,
    "branches on values": Branches,
    "counts its calls": Counts,
    "tied, frozen, unused": Odd,
}


@pytest.mark.parametrize("name", MODULES)
def test_any_module_is_measured_sample_by_sample_and_left_as_it_was(name: str) -> None:
    module = MODULES[name]().double().train()
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.randint(0, 3, (7,))
    vector, state = flatten(module), torch.get_rng_state()
    measure = Sensitivity(module, x, y)
    kept = {key: value.clone() for key, value in module.state_dict().items()}
    first, again = measure(vector), measure(vector)
    assert torch.equal(first, again)
    assert torch.equal(vector, flatten(module))
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert all(torch.equal(value, kept[key]) for key, value in module.state_dict().items())
    assert first.shape == (Layout.of(module).num_params,)
    torch.testing.assert_close(first, by_hand(module, x, y), rtol=1e-9, atol=1e-12)


def test_what_vmap_cannot_follow_is_taken_one_by_one() -> None:
    x, y = torch.randn(7, 4), torch.randint(0, 3, (7,))
    module = MODULES["convolution"]()
    plain, branching = Sensitivity(module, x, y), Sensitivity(Branches(), x, y)
    plain(flatten(module))
    branching(torch.ones(15))
    assert (plain._vmap_failed, branching._vmap_failed) == (False, True)


def test_the_statistics_are_those_of_the_model_that_is_measured() -> None:
    module, x, y = normed(), torch.randn(7, 4), torch.randint(0, 3, (7,))
    measure, vector = Sensitivity(module, x, y), flatten(module)
    other = vector.clone()
    (mean, _), *_ = Layout.of(module).buffers
    other[mean : mean + 6] += 1
    assert not torch.allclose(measure(vector), measure(other))


def test_many_samples_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, y = MODULES["convolution"]().double(), torch.randn(7, 4).double(), torch.randint(0, 3, (7,))
    whole = Sensitivity(module, x, y)(flatten(module))
    monkeypatch.setattr(sensitivity, "_MAX_GRADIENT_ENTRIES", flatten(module).numel() * 3)  # three samples at once
    torch.testing.assert_close(Sensitivity(module, x, y)(flatten(module)), whole, rtol=1e-12, atol=1e-15)


def test_a_module_that_is_wrong_says_what_is_wrong() -> None:
    measure = Sensitivity(nn.Linear(5, 3), torch.randn(7, 4), torch.randint(0, 3, (7,)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        measure(torch.ones(18))


# ---------------------------------------------------------------- calibration batches


def shards(labels: torch.dtype = torch.int64) -> ClientData:
    """Three clients; input (n, n) has label n mod 5."""
    n = torch.arange(30.0)
    x, y = torch.stack([n, n], 1), (n % 5).to(labels)
    return ClientData.separate([(x[:3], y[:3]), (x[3:20], y[3:20]), (x[20:], y[20:])])


def test_noise_has_the_shape_of_the_data_and_labels_of_every_class() -> None:
    x, y = noise_batch(shards(), 500, seed=1)
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((500, 2), torch.float32, (500,), torch.int64)
    assert y.unique().tolist() == [0, 1, 2, 3, 4]
    assert abs(x.mean().item()) < 5 / 1000**0.5
    assert abs(x.var().item() - 1) < 5 * (2 / 1000) ** 0.5
    again, other = noise_batch(shards(), 500, seed=1), noise_batch(shards(), 500, seed=2)
    assert torch.equal(again[0], x)
    assert torch.equal(again[1], y)
    assert not torch.equal(other[0], x)


def test_noise_for_real_targets_has_real_labels() -> None:
    _, y = noise_batch(shards(torch.float32), 8, seed=1)
    assert y.dtype == torch.float32
    assert (y % 1 != 0).any()


def test_noise_cannot_stand_for_words() -> None:
    with pytest.raises(ConfigError, match="use calibration = 'real'"):
        noise_batch(ClientData.separate([(torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3))]), 8, seed=1)


def test_real_examples_come_with_their_labels_each_at_most_once() -> None:
    x, y = real_batch(shards(), 20, seed=1)
    assert torch.equal(x[:, 0] % 5, y.float())
    assert len(x[:, 0].unique()) == 20
    assert len(real_batch(shards(), 100, seed=1)[0]) == 30  # there are no more
    assert not torch.equal(real_batch(shards(), 20, seed=2)[0], x)


# ---------------------------------------------------------------- the probe


def probe_of(module: nn.Module, data: ClientData, **settings: object) -> Probe:
    return make_probe(GaussianSketch(k=3, calibration_size=8, **settings), module, data, Classification(), seed=4)


def test_a_probe_is_the_sketch_of_the_sensitivity_on_the_shared_batch() -> None:
    module = nn.Linear(2, 5)
    for kind, batch in (("gaussian", noise_batch), ("real", real_batch)):
        expected = GaussianSketch(k=3).sketch(Sensitivity(module, *batch(shards(), 8, 4))(flatten(module)), 4)
        assert torch.equal(probe_of(module, shards(), calibration=kind)(flatten(module)), expected)


def test_the_parameters_themselves_may_be_sketched_and_need_no_data() -> None:
    module = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5))
    vector = flatten(module)
    probe = probe_of(module, shards(), signal="parameters")
    assert torch.equal(probe(vector), GaussianSketch(k=3).sketch(vector[: 15 + 10], 4))  # statistics do not enter


@pytest.mark.parametrize("settings", [{}, {"signal": "parameters"}, {"fisher": "batch"}, {"calibration": "real"}])
def test_a_stack_of_clients_and_a_pickled_probe_give_the_same_bits(settings: dict[str, str]) -> None:
    module = nn.Linear(2, 5)
    probe, stack = probe_of(module, shards(), **settings), torch.randn(3, 15)
    alone = torch.stack([probe(vector) for vector in stack])
    assert torch.equal(probe(stack), alone)
    assert torch.equal(pickle.loads(pickle.dumps(probe))(stack), alone)


def test_regression_is_probed_too() -> None:
    module = nn.Linear(2, 1)
    probe = make_probe(GaussianSketch(k=3), module, shards(torch.float32), Regression(), seed=0)
    assert probe(flatten(module)).shape == (3,)


# ---------------------------------------------------------------- within a job


def test_a_job_uploads_the_sketch_of_its_model_and_trains_as_without_it() -> None:
    module, data = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 5)), shards()
    probe = probe_of(module, data)
    trainer = Trainer(module, data, Training(epochs=2, batch=4), probe=probe)

    def job(work: LocalWork) -> Job:
        return Job(
            ticket=0,
            client=1,
            index=0,
            base=flatten(module),
            base_version=0,
            work=work,
            num_examples=17,
            memory={},
            seed=1,
        )

    plain, sketched = trainer(job(LocalWork())), trainer(job(LocalWork(rule=Sketched(k=3))))
    assert torch.equal(plain.local, sketched.local)
    assert torch.equal(sketched.extras["sketch"], probe(sketched.local))
    assert torch.equal(trainer(job(LocalWork())).local, plain.local)
    again = pickle.loads(pickle.dumps(trainer))(job(LocalWork(rule=Sketched(k=3))))
    assert torch.equal(again.extras["sketch"], sketched.extras["sketch"])


def test_without_a_probe_such_a_job_fails_with_a_reason() -> None:
    trainer = Trainer(nn.Linear(2, 5), shards(), Training())
    with pytest.raises(ConfigError, match="probe"):
        trainer(Job(0, 1, 0, torch.zeros(15), 0, LocalWork(rule=Sketched(k=3)), 17, {}, 1))
