"""Programs that are recorded once and played again train as each client would alone. On a CPU the same step is called
where a GPU plays its graph; bench/gpu.py compares the two on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from uneven_clients import RULES, SIZES, Net, agree, extras_of, jobs_of, trainer_of

from offbeat.core.errors import DataError
from offbeat.core.jobs import CLIENT_STATISTICS, Job, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalJob, LocalRule, LocalWork
from offbeat.core.strategies.fed_ogd import Orthogonal
from offbeat.core.strategies.fedpsa.sketch import Sketched
from offbeat.core.vector import flatten
from offbeat.training.client_data import ClientData
from offbeat.training.cuda.cuda_trainer import CudaTrainer, round_up_clients
from offbeat.training.cuda.graph_step import SEGMENT, CannotRecord, GraphProgram, is_out_of_memory
from offbeat.training.cuda.linear_softmax import LinearSoftmax, copy_vectors, descend
from offbeat.training.cuda.norm_relu import find_fused_norms
from offbeat.training.gradient import overrides
from offbeat.training.stacked.batch_order import BatchOrder
from offbeat.training.stacked.convolution import Geometry, avg_pool, convolve, max_pool
from offbeat.training.stacked.layers import FUSED_NORMS, NotStackable, stack_module
from offbeat.training.trainer import Trainer, Training


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True))
        self.around = nn.Conv2d(1, 4, 1)
        self.last = nn.Sequential(nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.first(x) + self.around(x)))
        return out


class Twice(nn.Module):
    """One norm in two places: its statistics move twice a step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, bias=False), nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        self.norm, self.scale = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.scale.bias = None  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(torch.tanh(self.norm(torch.tanh(self.scale(self.first(x)))))))
        return out


class Still(nn.Module):
    """A model that keeps the statistics it came with while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 4))

    def train(self, mode: bool = True) -> Still:
        super().train(mode)
        self.body[1].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


MODELS: dict[str, Any] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
    "pooled": lambda: nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 3, 2, bias=False), nn.Tanh(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 4, bias=False),
    ),
    "strided": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(27, 4)
    ),
    "residual": Residual,
    "normal": Net,
    "twice": Twice,
    "statistics": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4, momentum=None), nn.Tanh(),
        nn.Conv2d(4, 3, 2, bias=False), nn.BatchNorm2d(3, track_running_stats=False, affine=False, eps=0.01),
        nn.Flatten(), nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8, momentum=0.3), nn.GELU(), nn.Linear(8, 4),
    ),
}  # fmt: skip


class Recorded(CudaTrainer):
    """Trains by programs or not at all: a stack that fails would else be trained in another way, unnoticed."""

    def _otherwise(self, i: int, jobs: list[Job]) -> Any:
        raise AssertionError("it is not trained by a program")


def train(trainer: CudaTrainer, jobs: list[Job]) -> list[Result]:
    answers = trainer.train_many(jobs)
    assert not any(isinstance(answer, Exception) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, Result)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "training",
    [
        Training(batch=8, epochs=2),
        Training(batch=8, steps=9, momentum=0.9, weight_decay=0.01),
        Training(batch=16, epochs=1, optimizer="adam", lr=0.01, weight_decay=0.1),
        Training(batch=64, epochs=3, optimizer="adamw", lr=0.01, weight_decay=0.1),
    ],
    ids=["sgd", "momentum", "adam", "adamw"],
)
def test_every_layer_and_optimizer_trains_as_alone(model: str, training: Training, caplog: Any) -> None:
    trainer = trainer_of(training, MODELS[model]())
    jobs = jobs_of(trainer, None)
    found = Recorded([trainer])
    for _ in range(2):  # the second time with what was recorded
        agree(train(found, jobs), [trainer(job) for job in jobs])
        agree(train(found, jobs[:3]), [trainer(job) for job in jobs[:3]])
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("model", ["pooled", "normal", "linear"])
@pytest.mark.parametrize("name", [name for name in RULES if name not in ("head, then body",)])
def test_every_rule_trains_as_alone(name: str, model: str, caplog: Any) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), MODELS[model]())
    jobs = jobs_of(trainer, *RULES[name])
    kind = CudaTrainer if jobs[0].work.rule and overrides(jobs[0].work.rule, "loss") else Recorded
    agree(train(kind([trainer]), jobs), [trainer(job) for job in jobs], 1e-11)


@pytest.mark.parametrize("rule", [None, Sketched(k=5)], ids=["plain", "sketched"])
def test_statistics_that_stay_at_the_clients_do(rule: LocalRule | None, caplog: Any) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2, bn="local"))
    own = {i: {CLIENT_STATISTICS: torch.full((7,), 0.5 + i, dtype=torch.float64)} for i in range(1, 5)}
    jobs = jobs_of(trainer, rule, kept=lambda i: own.get(i, {}))
    found = train(Recorded([trainer]), jobs)
    agree(found, [trainer(job) for job in jobs])
    assert all(result.memory[CLIENT_STATISTICS].shape == (7,) for result in found)
    assert not caplog.records, caplog.text


def test_statistics_move_once_a_step_wherever_else_a_rule_looks(caplog: Any) -> None:
    """The batch at w, wherever in the order of looks; and nowhere, if a rule never looks there."""
    for rule in (Elsewhere(there=True), Elsewhere(there=False)):
        trainer = trainer_of(Training(batch=8, epochs=1))
        jobs = jobs_of(trainer, rule)
        found = train(Recorded([trainer]), jobs)
        agree(found, [trainer(job) for job in jobs])
        (tracked,) = (s for s in trainer.binding.layout.slices if s.kind == "counter")
        moved = [float(result.local[tracked.start]) for result in found]
        assert moved == [result.steps if rule.there else 0 for result in found]
    assert not caplog.records, caplog.text


@dataclass(frozen=True)
class Elsewhere(LocalRule):
    """Looks a little before w, at w twice if at all, and a little behind it."""

    there: bool

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        looks = [grad(w - 0.01), *([grad(w), grad(w)] if self.there else []), grad(w + 0.01)]
        return torch.stack(looks).mean(0), carry


def test_one_example_alone_has_no_statistics_which_torch_says() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4))
    trainer = trainer_of(Training(batch=8, epochs=1), module)
    jobs = jobs_of(trainer, None)
    answers = CudaTrainer([trainer]).train_many([replace(jobs[0], num_examples=1), *jobs[1:]])
    assert "more than 1 value per channel" in str(answers[0])
    agree([answer for answer in answers if isinstance(answer, Result)], [trainer(job) for job in jobs[1:]])


def test_a_last_batch_of_one_is_part_of_the_one_before(caplog: Any) -> None:
    """9 = 8 + 1: where all batches are of at most 8 but one of 9, there is a place for the ninth."""
    trainer = trainer_of(Training(batch=8, epochs=2))
    jobs = [replace(job, num_examples=9) for job in jobs_of(trainer, None)]
    found = train(Recorded([trainer]), jobs)
    agree(found, [trainer(job) for job in jobs])
    assert [result.steps for result in found] == [1, 7, 2, 2, 3]


def test_long_jobs_are_put_in_place_segment_by_segment(caplog: Any) -> None:
    trainer = trainer_of(Training(batch=8, steps=2 * SEGMENT + 3), MODELS["linear"]())
    jobs = jobs_of(trainer, None)
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs])


@pytest.mark.parametrize("most", [1, 2, 4])
def test_stacks_are_no_larger_than_they_may_be(most: int) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), MODELS["pooled"]())
    jobs = jobs_of(trainer, None)
    agree(train(CudaTrainer([trainer], max_jobs=most), jobs), [trainer(job) for job in jobs])


def test_too_little_memory_makes_smaller_stacks_which_is_said(monkeypatch: Any, caplog: Any) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), MODELS["linear"]())
    jobs = jobs_of(trainer, None)
    found = CudaTrainer([trainer])
    whole = found._train

    def poor(rule: LocalRule, some: Any) -> Any:
        if len(some) > 2:
            raise torch.OutOfMemoryError
        return whole(rule, some)

    monkeypatch.setattr(found, "_train", poor)
    for _ in range(2):
        agree(train(found, jobs), [trainer(job) for job in jobs])
    assert [record.getMessage() for record in caplog.records] == [
        "no memory for stacks of 5 clients: 3 are trained at a time",
        "no memory for stacks of 3 clients: 2 are trained at a time",
    ]


def test_sizes_of_stacks_are_few() -> None:
    assert [round_up_clients(n) for n in (1, 7, 8, 15, 16, 17, 50, 64, 65, 500, 1000)] == [
        1, 7, 8, 15, 16, 18, 52, 64, 72, 512, 1024,
    ]  # fmt: skip
    assert len({round_up_clients(n) for n in range(1, 1025)}) == 8 + 7 * 8


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True), nn.Flatten(), nn.Linear(64, 4)
            ),
            "it has buffers other than BatchNorm's (of one or two dimensions)",
        ),
        (Still, "body.1: a BatchNorm that does not train with the others"),
    ],
)
def test_what_has_no_stacked_form_is_trained_otherwise_and_said(module: Any, why: str, caplog: Any) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), module())
    jobs = jobs_of(trainer, None)
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs])
    assert [record.getMessage() for record in caplog.records] == [f"steps are not recorded as one program: {why}"]


def test_batches_of_one_are_not_recorded_where_they_meet(caplog: Any) -> None:
    trainer = trainer_of(Training(batch=1, steps=3))
    jobs = jobs_of(trainer, None)
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs])
    assert "a batch of one example may have no statistics" in caplog.text


def test_what_fills_a_batch_up_is_of_the_same_batch() -> None:
    """BatchNorm may make of another example anything: 20 = 8 + 8 + 4, in an order that is known."""
    order = torch.arange(20).flip(0)[None].int()
    ones = torch.tensor([1])
    orders = BatchOrder(order, 20 * ones, 3 * ones, 0 * ones, None, 3 * ones, 8, 3)
    chosen, sizes, *_ = orders.batch_rows(0, 4, 8)
    assert sizes.flatten().tolist() == [8, 8, 4, 0]
    assert chosen[2, 0].tolist() == [3, 2, 1, 0, 3, 3, 3, 3]
    assert chosen[3, 0].tolist() == [19] * 8  # of who is done, any


class Counting(LocalRule):
    """Counts its steps in a plain number, which a graph would never change."""

    def begin(self, job: LocalJob) -> int:
        return 0

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: int) -> tuple[Tensor, int]:
        return grad(w) / (carry + 1), carry + 1


def test_a_rule_that_cannot_be_recorded_is_trained_otherwise_and_said(caplog: Any) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), MODELS["linear"]())
    jobs = jobs_of(trainer, Counting())
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs])
    assert "steps of Counting are not recorded: its rule counts in plain numbers" in caplog.text


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2)), "a convolution in groups"),
        (nn.Sequential(nn.MaxPool2d(3, stride=2)), "windows overlap"),
        (nn.LSTM(3, 4), "LSTM"),
        (nn.Sequential(nn.BatchNorm3d(3)), "0 is a BatchNorm3d"),
    ],
)
def test_other_layers_have_no_stacked_form(module: nn.Module, why: str) -> None:
    with pytest.raises(NotStackable, match=why):
        stack_module(module)


def test_clients_without_a_common_table_of_examples_train_too() -> None:
    trainer = trainer_of(Training(batch=8, epochs=1), MODELS["linear"]())
    x, y = trainer.data.all_examples()
    starts = [sum(SIZES[:i]) for i in range(len(SIZES))]
    rows = [torch.arange(start, start + size).flip(0) for start, size in zip(starts, SIZES, strict=True)]
    shared = Trainer(trainer.binding, ClientData.shared(x, y, rows), trainer.training)
    jobs = jobs_of(shared, None)
    agree(train(CudaTrainer([shared]), jobs), [shared(job) for job in jobs])


def test_a_convolution_by_hand() -> None:
    """Two clients, one picture of 2 x 2, a kernel of 1 x 2: [1 2; 3 4] * [1 10] = [21; 43], * [2 0] = [2; 6]."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 2, 2, 1).expand(2, 1, 2, 2, 1)
    weight = torch.tensor([[1.0, 10.0], [2.0, 0.0]]).view(2, 1, 1, 1, 2)
    out = convolve(x, weight, torch.tensor([[0.0], [1.0]]), Geometry((1, 2)))
    assert out.flatten().tolist() == [21.0, 43.0, 3.0, 7.0]


def test_pooling_by_hand() -> None:
    x = torch.tensor([[1.0, 5.0, 9.0], [5.0, 2.0, 9.0]]).view(1, 1, 2, 3, 1).requires_grad_()
    out = max_pool(x, (2, 2))
    assert out.flatten().tolist() == [5.0]
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.flatten().tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]  # the first of the two fives; the rest is cut off
    assert avg_pool(x.detach(), (2, 2)).flatten().tolist() == [13.0 / 4]


def test_work_with_phases_is_trained_otherwise() -> None:
    trainer = trainer_of(Training(batch=8, epochs=1))
    jobs = jobs_of(trainer, *RULES["head, then body"])
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs], 1e-11)


def test_runs_of_one_kind_share_a_program_and_keep_their_own_rates_and_examples() -> None:
    first = trainer_of(Training(batch=8, epochs=1), MODELS["pooled"]())
    x, y = first.data.all_examples()
    rows = [torch.arange(60).flip(0), torch.arange(20, 70), torch.arange(100, 140), torch.arange(33), torch.arange(12)]
    runs = [
        Trainer(first.binding.module, ClientData.shared(x, y, rows), Training(batch=8, epochs=1)),
        Trainer(first.binding.module, ClientData.shared(x, y, rows[::-1]), Training(batch=8, epochs=2, lr=0.2)),
    ]
    jobs = [replace(job, num_examples=12) for trainer in runs for job in jobs_of(trainer, None)]
    jobs = [replace(job, ticket=i) for i, job in enumerate(jobs)]
    shared = CudaTrainer(runs, lambda job: job.ticket // 5)
    agree(train(shared, jobs), [runs[job.ticket // 5](job) for job in jobs])
    assert len(shared._programs) == 1


def test_a_job_that_fails_fails_alone() -> None:
    trainer = trainer_of(Training(batch=8, epochs=1), MODELS["linear"]())
    jobs = jobs_of(trainer, None)
    jobs[1] = replace(jobs[1], num_examples=10_000)
    answers = CudaTrainer([trainer]).train_many(jobs)
    assert isinstance(answers[1], DataError)
    assert [isinstance(answer, Result) for answer in answers] == [True, False, True, True, True]


class Normed(LocalRule):
    """A direction of length one: nothing over nothing, once a client is done."""

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return g / g.norm(dim=-1, keepdim=True), carry


class Before(LocalRule):
    """Steps along the gradient of two steps ago: a carry whose leaves move up."""

    def begin(self, job: LocalJob) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(job.start), torch.zeros_like(job.start)

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return g + carry[1], (g, carry[0])


class Noisy(LocalRule):
    """Draws at its end."""

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Any, Any]:
        local += torch.randn(local.shape, dtype=local.dtype)
        return {}, {}


class Shaken(LocalRule):
    """Draws at every step."""

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        return grad(w) + torch.randn(w.shape, dtype=w.dtype), carry


@pytest.mark.parametrize("rule", [Normed(), Before(), Noisy(), Shaken()], ids=lambda rule: type(rule).__name__)
def test_rules_that_divide_remember_or_draw(rule: LocalRule) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), MODELS["linear"]())
    jobs = jobs_of(trainer, rule)
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs])


class Again(nn.Module):
    """Reads what an in-place layer has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(36, 6), nn.Linear(6, 6), nn.ReLU(inplace=True)
        self.flat, self.c = nn.Flatten(), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(self.flat(x))
        out: Tensor = self.c(self.b(self.relu(h)) + h)
        return out


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flat, self.a, self.b, self.c = nn.Flatten(), nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c(self.b(self.a(self.flat(x)).relu()))
        return out


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    module.register_forward_hook(lambda _, __, out: 2 * out)
    return module


UNUSUAL: dict[str, Any] = {
    "in place": Again,
    "tied": Tied,
    "hooks": hooked,
    "divisor": lambda: nn.Sequential(nn.AvgPool2d(2, divisor_override=3), nn.Flatten(), nn.Linear(9, 4)),
    "adaptive": lambda: nn.Sequential(nn.AdaptiveAvgPool2d((None, 1)), nn.Flatten(), nn.Linear(6, 4)),
    "channels": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout2d(0.5), nn.Linear(8, 4)),
    "evaluation": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 4)).eval(),
}


@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_right_one_way_or_the_other(name: str) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), UNUSUAL[name]())
    jobs = jobs_of(trainer, None)
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs])


def test_a_word_that_an_embedding_does_not_know_is_that_clients_failure() -> None:
    module = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2)).double()
    pairs = [(torch.randint(0, 5, (10, 4)), torch.randint(0, 2, (10,))) for _ in range(3)]
    pairs[0][0][0, 0] = 7
    trainer = Trainer(module, ClientData.separate(pairs), Training(batch=4))
    base = flatten(module)
    jobs = [Job(i, i, 0, base, 0, LocalWork(), 10, {}, seed=1) for i in range(3)]
    answers = CudaTrainer([trainer]).train_many(jobs)
    assert isinstance(answers[0], IndexError)
    agree([answer for answer in answers if isinstance(answer, Result)], [trainer(job) for job in jobs[1:]])


class Blocks(nn.Module):
    """A norm with everything that may follow it: a ReLU, something added and then one, and neither."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(n, 4, 3, padding=1) for n in (1, 4, 1))
        self.first, self.second, self.third, self.last = (norm() for _ in range(4))
        self.relu, self.end = nn.ReLU(inplace=True), nn.Linear(4, 4)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.first(self.a(x)))
        out = torch.relu(self.third(self.c(x)) + self.second(self.b(out)))
        end: Tensor = self.end(self.pool(self.last(out) + out))
        return end


@pytest.mark.parametrize(
    "norm", [lambda: nn.GroupNorm(2, 4), lambda: nn.BatchNorm2d(4)], ids=["GroupNorm", "BatchNorm2d"]
)
def test_what_follows_a_norm_is_computed_with_it(norm: Callable[[], nn.Module], caplog: Any) -> None:
    module = Blocks(norm)
    nodes = tuple(fx.symbolic_trace(module).graph.nodes)
    whole = {name: one for name, one in find_fused_norms(module, nodes, FUSED_NORMS).items() if one is not None}
    assert {one.norm.name: None if one.added is None else one.added.name for one in whole.values()} == {
        "first": None,
        "third": "second",
    }
    trainer = trainer_of(Training(batch=8, epochs=2), module)
    jobs = jobs_of(trainer, None)
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs])
    assert not caplog.records, caplog.text


class Twice(nn.Module):
    """One norm called twice, and what follows the second call before what follows the first; and what is added to a
    norm is smaller than what comes out of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(1, 4, 3, padding=1) for _ in range(3))
        self.norm, self.other, self.end = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Linear(4, 4)
        self.pool, self.flat = nn.AdaptiveAvgPool2d(1), nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.norm(self.a(x)), self.norm(self.b(x) * 3), self.c(x)
        out = torch.relu(second)
        out = out + torch.relu(first) + torch.relu(self.other(third) + self.pool(third))
        end: Tensor = self.end(self.flat(self.pool(out)))
        return end


def test_a_norm_that_is_called_twice_moves_its_statistics_call_by_call() -> None:
    module = Twice()
    nodes = tuple(fx.symbolic_trace(module).graph.nodes)
    assert {one.norm.name for one in find_fused_norms(module, nodes, FUSED_NORMS).values() if one is not None} == {
        "other"
    }
    trainer = trainer_of(Training(batch=8, epochs=2), module)
    jobs = jobs_of(trainer, None)
    agree(train(CudaTrainer([trainer]), jobs), [trainer(job) for job in jobs])


def test_one_linear_layer_descended_plainly_needs_no_record(caplog: Any) -> None:
    trainer = trainer_of(Training(batch=8, steps=SEGMENT + 3), MODELS["linear"]())
    jobs = jobs_of(trainer, None)
    found = CudaTrainer([trainer])
    agree(train(found, jobs), [trainer(job) for job in jobs])
    assert not found._programs
    for other in (Training(momentum=0.9), Training(optimizer="adam"), Training(batch=256)):
        assert LinearSoftmax.for_trainer(trainer_of(other, MODELS["linear"]()), trainer.data.all_examples()) is None
    assert LinearSoftmax.for_trainer(trainer_of(Training(), MODELS["pooled"]()), trainer.data.all_examples()) is None


@dataclass(frozen=True)
class Drawn(LocalRule):
    """Descends plainly, and draws before and after."""

    def begin(self, job: LocalJob) -> Any:
        return torch.rand(2, dtype=torch.float64)

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> Any:
        drawn = torch.cat([carry, torch.rand(2, dtype=torch.float64)])
        return {"drawn": drawn, "moved": local - job.start}, {"kept": carry}


def test_one_layer_is_one_descent_whatever_its_clients_are_asked_before_and_after(monkeypatch: Any) -> None:
    together: list[int] = []
    descent = LinearSoftmax.train

    def counted(self: LinearSoftmax, bases: list[Tensor], *rest: Any) -> list[Tensor]:
        together.append(len(bases))
        return descent(self, bases, *rest)

    monkeypatch.setattr(LinearSoftmax, "train", counted)
    trainer = trainer_of(Training(batch=8, epochs=2), MODELS["linear"]())
    rules = (None, Proximal(mu=0.3), Sketched(k=5), Drawn(), Orthogonal())
    sent = extras_of(trainer, "basis")
    jobs = [
        replace(job, work=replace(job.work, rule=rule, extras=sent(i) if isinstance(rule, Orthogonal) else {}))
        for i, (job, rule) in enumerate(zip(jobs_of(trainer, None), rules, strict=True))
    ]
    for some in (jobs, jobs[::-1], jobs[1:2]):
        agree(train(Recorded([trainer]), some), [trainer(job) for job in some])
    assert together == [4, 4, 1]  # Fed-OGD's direction is its own


@dataclass(frozen=True)
class Unpulled(Proximal):
    """Gives up what it inherits."""

    direction = LocalRule.direction


def test_a_rule_that_gives_the_pull_up_is_not_pulled() -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), MODELS["linear"]())
    jobs = jobs_of(trainer, Unpulled(mu=0.5))
    agree(train(Recorded([trainer]), jobs), [trainer(job) for job in jobs])


@dataclass(frozen=True)
class Failing(LocalRule):
    """Fails for who has that rate."""

    when: str

    def begin(self, job: LocalJob) -> Any:
        if self.when == "begin" and job.lr == 0.1:
            raise ValueError("at the beginning")

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> Any:
        if self.when == "end" and job.lr == 0.1:
            raise ValueError("at the end")
        return {}, {}


@pytest.mark.parametrize("when", ["begin", "end"])
def test_a_rule_that_fails_for_one_client_fails_alone(when: str, caplog: Any) -> None:
    trainer = trainer_of(Training(batch=8, epochs=2), MODELS["linear"]())
    jobs = jobs_of(trainer, Failing(when))
    answers = Recorded([trainer]).train_many(jobs)
    (wrong,) = (i for i, answer in enumerate(answers) if isinstance(answer, Exception))
    assert jobs[wrong].work.lr == 0.1
    with pytest.raises(ValueError, match="at the"):
        trainer(jobs[wrong])
    rest = [job for i, job in enumerate(jobs) if i != wrong]
    agree([answer for answer in answers if isinstance(answer, Result)], [trainer(job) for job in rest])
    assert not caplog.records, caplog.text


def test_a_pull_back_is_part_of_a_step() -> None:
    # one weight, two classes, a step of rate 1/2 after one of rate 1/2, mu = 1, x = 0: no gradient but of the biases
    w, x, y = torch.zeros(2, 4, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0])
    ones = torch.ones(2, dtype=torch.int64)
    orders = BatchOrder(torch.zeros(2, 2, dtype=torch.int32), ones, 2 * ones, 0 * ones, None, ones, 1, 2)
    rates, pulls = torch.tensor([0.5, 0.5]).double(), torch.tensor([1.0, 0.0]).double()
    descend(w, (0, 2, 2, 1), x, y, orders, rates, pulls)
    # b goes from 0 by 1/2 (1 - p) = 1/4; p is then 1 / (1 + e^(-1/2)) = 0.62246, so by 0.18877 more, and half of the
    # way from 1/4 to 0 back
    assert w[:, 2].tolist() == pytest.approx([0.25 - 0.125 + 0.18877, 0.25 + 0.18877], abs=1e-5)
    assert w[:, 3].tolist() == pytest.approx([-0.31377, -0.43877], abs=1e-5)
    assert w[:, :2].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_stack_that_fails_though_its_jobs_do_not_is_told_once(monkeypatch: Any, caplog: Any) -> None:
    def fails(self: LinearSoftmax, bases: list[Tensor], *rest: Any) -> list[Tensor]:
        raise RuntimeError(f"no compiler for {bases[0].data_ptr()}\nand more of it")

    monkeypatch.setattr(LinearSoftmax, "train", fails)
    trainer = trainer_of(Training(batch=8, steps=5), MODELS["linear"]())
    jobs, found = jobs_of(trainer, None), CudaTrainer([trainer])
    agree(train(found, jobs), [trainer(job) for job in jobs])
    train(found, [replace(job, base=job.base.clone()) for job in jobs])
    (said,) = caplog.messages
    assert said.startswith("a stack failed on the device, its jobs were trained otherwise: RuntimeError: no compiler")
    assert "more" not in said


def test_examples_pass_the_door_once_on_the_straight_way() -> None:
    class Door:
        by_example = True
        passed = 0

        def __call__(self, module: nn.Module, inputs: Any) -> Any:
            self.passed += 1
            return (inputs[0] * 2 + 1,)

    module, door = MODELS["linear"](), Door()
    module.register_forward_pre_hook(door)
    trainer = trainer_of(Training(batch=8, epochs=2), module)
    jobs = jobs_of(trainer, None)
    found = CudaTrainer([trainer])
    before = door.passed
    results = train(found, jobs)
    assert door.passed == before
    agree(results, [trainer(job) for job in jobs])


def test_rows_of_a_stack_become_tensors_of_their_own() -> None:
    w = torch.tensor([[1.0, -0.0], [float("nan"), float("inf")], [5.0, 6.0]])
    ends = copy_vectors(w[:2].unbind(0))
    w.zero_()
    assert [repr(end.tolist()) for end in ends] == ["[1.0, -0.0]", "[nan, inf]"]
    assert all(end.untyped_storage().nbytes() == 8 for end in ends)


def test_a_broken_capture_is_told_from_a_lack_of_memory() -> None:
    broken = RuntimeError("capture failed")  # what ending a capture says
    broken.__context__ = torch.OutOfMemoryError("no memory")
    assert is_out_of_memory(broken)
    assert not is_out_of_memory(RuntimeError("capture failed"))


def test_a_model_whose_step_cannot_be_recorded_is_not_tried_again(monkeypatch: Any, caplog: Any) -> None:
    tried = []

    def refused(program: GraphProgram) -> None:
        tried.append(program)
        raise CannotRecord("the host looks at its values")

    monkeypatch.setattr(GraphProgram, "_record", refused)
    trainer = trainer_of(Training(batch=8, epochs=1), MODELS["pooled"]())
    jobs = jobs_of(trainer, None)
    found = CudaTrainer([trainer])
    for _ in range(2):
        agree(train(found, jobs), [trainer(job) for job in jobs])
    assert len(tried) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "steps of PlainRule are not recorded: the host looks at its values"
    ]
