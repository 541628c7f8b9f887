"""Unknown modules train in a stack with the results of single jobs, or one at a time with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from uneven_clients import SIZES, agree, jobs_of

import offbeat
from offbeat.core.vector import Layout
from offbeat.training.client_data import ClientData
from offbeat.training.dispatch import Dispatcher
from offbeat.training.stacked import traced_kernel
from offbeat.training.trainer import Trainer, Training


class FunctionalCnn(nn.Module):
    """Pooling and activations are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.a(x)), 2)
        return self.c(torch.relu(self.b(x)).flatten(1))


class Attention(nn.Module):
    """A vision transformer of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(6, 8), nn.Parameter(0.1 * torch.randn(1, 6, 8))
        self.norm, self.qkv, self.out, self.head = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.squeeze(1)) + self.position
        q, k, v = self.qkv(self.norm(x)).view(len(x), 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), 6, 8))
        return self.head(F.gelu(x).mean(1))


class Encoder(nn.Module):
    """torch's encoder with its default dropout of 0.1, inside attention too."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x.squeeze(1)).mean(1))


class Recurrent(nn.Module):
    """A recurrent layer, from all of whose results the outputs follow."""

    def __init__(self, layer: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layer = layer(6, 3, batch_first=True, **options)
        self.head = nn.Linear(2 * 3 * (2 if options.get("bidirectional") else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.layer(x.squeeze(1))
        state = sum(state) if isinstance(state, tuple) else state
        last = state[-2:].transpose(0, 1).flatten(1) if self.layer.bidirectional else state[-1]
        return self.head(torch.cat([outputs.mean(1), last], 1))


class UNet(nn.Module):
    """Down, up, and around."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(4, 3, 2, stride=2), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = F.relu(self.down(x))
        low = F.relu(self.low(F.avg_pool2d(high, 2)))
        return self.last(torch.cat([high, self.up(low)], 1)).mean((2, 3)).repeat(1, 2)


class Residual(nn.Module):
    """A residual block with a norm."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(i, 4, 3, padding=1, bias=False) for i in (1, 4, 4))
        self.n, self.na, self.nb, self.head = norm(), norm(), norm(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.n(self.stem(x)))
        return self.head(F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))) + x).mean((2, 3)))


class Mobile(nn.Module):
    """An inverted residual block with a convolution in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(1, 6, 1, bias=False), nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.norm, self.narrow, self.head = nn.BatchNorm2d(6), nn.Conv2d(6, 2, 1), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.narrow(F.relu6(self.norm(self.deep(F.hardswish(self.wide(x)))))).mean((2, 3)))


class Bag(nn.Module):
    """A bag of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 5, mode="mean"), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x.flatten(1).abs().long().clamp(max=6)))


class TwoHeads(nn.Module):
    """Two heads on one body, one of which looks at the other."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(36, 8), nn.Linear(8, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.body(x.flatten(1)))
        first = self.first(features)
        return first + self.second(torch.cat([features, first.softmax(1)], 1))


class Tied(nn.Module):
    """Two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(F.silu(self.a(x.flatten(1)))))


class ShapeBranch(nn.Module):
    """Branches on a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x.flatten(1))
        return out * 2 if x.shape[-1] > 3 else out


class DataBranch(ShapeBranch):
    """Branches on values."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x.flatten(1))
        return out * 2 if float(out.sum()) > 0 else out


class ThroughNumpy(ShapeBranch):
    """Computes a factor with NumPy."""

    def forward(self, x: Tensor) -> Tensor:
        factor = np.abs(x.detach().numpy()).mean()
        return self.layer(x.flatten(1)) * float(factor)


class SelfChanging(ShapeBranch):
    """Counts its calls in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x.flatten(1))


class Centred(ShapeBranch):
    """Subtracts the mean of the batch, so padding would change every output."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.layer(flat - flat.mean(0))


class Lora(nn.Module):
    """Low-rank adapters of a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(36, 8)
        self.frozen.requires_grad_(False)
        self.down, self.up, self.head = nn.Linear(36, 2, bias=False), nn.Linear(2, 8, bias=False), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.head(torch.relu(self.frozen(flat) + self.up(self.down(flat))))


STACKED: dict[str, Callable[[], nn.Module]] = {
    "functional CNN": FunctionalCnn,
    "vision transformer": Attention,
    "transformer encoder with dropout": Encoder,
    "LSTM, both directions": lambda: Recurrent(nn.LSTM, bidirectional=True),
    "GRU, two layers": lambda: Recurrent(nn.GRU, num_layers=2, bias=False),
    "RNN": lambda: Recurrent(nn.RNN, nonlinearity="relu"),
    "U-Net": UNet,
    "ResNet with GroupNorm": lambda: Residual(lambda: nn.GroupNorm(2, 4)),
    "ResNet with BatchNorm": lambda: Residual(lambda: nn.BatchNorm2d(4)),
    "MobileNet block with groups": Mobile,
    "two heads": TwoHeads,
    "tied weights": Tied,
    "branch on shape": ShapeBranch,
    "functional dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), FunctionalDropout(), nn.Linear(8, 4)),
    "mean of the batch": Centred,
    "LoRA": Lora,
    "counts its calls": SelfChanging,
}
ALONE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "branch on data": (DataBranch, "vmap"),
    "call to NumPy": (ThroughNumpy, ""),
    "LSTM with dropout between layers": (
        lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.5),
        "dropout between the layers of LSTM",
    ),
    "random noise": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.RReLU()), "rrelu_with_noise"),
}


class FunctionalDropout(nn.Module):
    """Dropout by a function."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(torch.tanh(x), 0.3, self.training)


def trainer_of(module: nn.Module, training: Training | None = None) -> Trainer:
    torch.manual_seed(0)
    module = module.double()
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)
    pairs = [(torch.randn(n, 1, 6, 6, dtype=torch.float64), torch.randint(0, 4, (n,))) for n in SIZES]
    matrix = torch.randn(5, Layout.of(module).num_params, dtype=torch.float64)
    trainable = Layout.of(module).trainable
    training = training or Training(batch=8, epochs=2)
    return Trainer(module, ClientData.separate(pairs), training, probe=lambda vector: matrix @ trainable(vector))


@pytest.fixture(autouse=True)
def always_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stack any two jobs, however large the model is."""
    monkeypatch.setattr(traced_kernel, "why_alone_on_cpu", lambda trainer: None)
    monkeypatch.setattr(traced_kernel, "MIN_CPU_JOBS", 2)


@pytest.mark.parametrize("name", STACKED)
def test_a_stack_gives_the_results_of_single_jobs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_of(STACKED[name]())
    jobs = jobs_of(trainer, None)
    dispatcher = Dispatcher(trainer)
    agree(dispatcher.train_many(jobs), [trainer(job) for job in jobs])
    assert dispatcher.explain()[-1] == ("traced", None)
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("name", ALONE)
def test_a_module_that_cannot_be_stacked_trains_alone_with_one_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason = ALONE[name]
    trainer = trainer_of(make())
    jobs = jobs_of(trainer, None)
    dispatcher = Dispatcher(trainer)
    for _ in range(2):
        agree(dispatcher.train_many(jobs), [trainer(job) for job in jobs], tolerance=0)
    (message,) = caplog.messages
    assert message.startswith("clients are trained one at a time: their steps cannot be stacked (")
    assert reason in message
    assert dispatcher.explain()[-1] == ("per client", None)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of an embedding bag
@pytest.mark.parametrize("kernel", ["traced", "per client"])
def test_embeddings_are_stacked_if_the_range_of_tokens_is_known(kernel: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    dtype = torch.int64 if kernel == "traced" else torch.float64
    pairs = [(torch.randint(0, 7, (n, 6)).to(dtype), torch.randint(0, 4, (n,))) for n in SIZES]
    trainer = Trainer(Bag().double(), ClientData.separate(pairs), Training(batch=8, epochs=2))
    jobs, dispatcher = jobs_of(trainer, None), Dispatcher(trainer)
    agree(dispatcher.train_many(jobs), [trainer(job) for job in jobs])
    assert dispatcher.explain()[-1] == (kernel, None)
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("make", [FunctionalCnn, Centred, DataBranch])
def test_whole_runs_agree_with_inline_for_every_worker(make: Callable[[], nn.Module]) -> None:
    trainer = trainer_of(make())
    x, y = trainer.data.all_examples()
    clients = [(x[rows], y[rows]) for rows in torch.arange(len(x)).split(26)]
    models = []
    for worker in ("inline", "batched:1", "auto"):
        run = offbeat.simulate(
            trainer.binding.module,
            clients,
            offbeat.FedBuff(k=3),
            until="12updates",
            worker=worker,
            training=Training(batch=8, lr=0.05),
        )
        models.append(run.outcome.model)
    for model in models[1:]:
        torch.testing.assert_close(model, models[0], rtol=1e-10, atol=1e-12)
