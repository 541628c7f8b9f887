"""Jobs of a stack have the results of single jobs: for each rule, optimizer, and kind of difference between clients."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from uneven_clients import RULES, agree, jobs_of, trainer_of, vectors

from offbeat.core.errors import DataError
from offbeat.core.jobs import CLIENT_STATISTICS, Job, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import Gradient, LocalJob, LocalRule, LocalWork
from offbeat.core.strategies.fedpsa.sketch import Sketched
from offbeat.core.vector import flatten
from offbeat.training.client_data import ClientData
from offbeat.training.dispatch import Dispatcher
from offbeat.training.stacked import traced_kernel
from offbeat.training.stacked.traced_kernel import TracedKernel
from offbeat.training.trainer import Trainer, Training


@pytest.fixture(autouse=True)
def always_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stack any two jobs, however large the model is."""
    monkeypatch.setattr(traced_kernel, "why_alone_on_cpu", lambda trainer: None)
    monkeypatch.setattr(traced_kernel, "MIN_CPU_JOBS", 2)


@pytest.fixture
def trainer() -> Trainer:
    return trainer_of(Training(batch=8, epochs=2))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "offbeat"]


def stacked(trainer: Trainer, jobs: list[Job], caplog: Any) -> list[Result]:
    """Train jobs in stacks without a warning."""
    answers = Dispatcher(trainer).train_many(jobs)
    assert not warnings_of(caplog)
    return [answer for answer in answers if isinstance(answer, Result)]


@pytest.mark.parametrize("name", RULES)
def test_a_stack_gives_the_results_of_single_jobs_for_every_rule(trainer, name, caplog):
    jobs = jobs_of(trainer, *RULES[name])
    alone = [trainer(job) for job in jobs]
    assert len({result.steps for result in alone}) > 2
    agree(stacked(trainer, jobs, caplog), alone)


@pytest.mark.parametrize(
    "training",
    [
        Training(batch=8, momentum=0.9, weight_decay=0.01),
        Training(batch=8, optimizer="adam", lr=0.01, weight_decay=0.01, epochs=2),
        Training(batch=8, optimizer="adamw", lr=0.01, weight_decay=0.1, lr_decay=0.9),
        Training(batch=5, augment="crop-flip"),
    ],
)
def test_a_stack_gives_the_results_of_single_jobs_for_every_optimizer_and_with_augmentation(training, caplog):
    trainer = trainer_of(training)
    jobs = jobs_of(trainer, None)
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


def test_clients_of_a_stack_can_keep_their_own_statistics(caplog):
    trainer = trainer_of(Training(batch=8, bn="local"))
    jobs = jobs_of(
        trainer,
        Sketched(k=5),
        kept=lambda i: {CLIENT_STATISTICS: torch.full((7,), 0.5 + i, dtype=torch.float64)} if i else {},
    )
    alone = [trainer(job) for job in jobs]
    agree(stacked(trainer, jobs, caplog), alone)
    assert all(result.memory[CLIENT_STATISTICS].shape == (7,) for result in alone)


def test_jobs_of_different_rules_are_stacked_separately_and_answered_in_order(trainer, caplog):
    jobs = [*jobs_of(trainer, None)[:2], *jobs_of(trainer, Proximal(mu=0.1))[2:]]
    agree(stacked(trainer, [jobs[i] for i in (3, 0, 4, 1, 2)], caplog), [trainer(jobs[i]) for i in (3, 0, 4, 1, 2)])


class CallCounter(nn.Module):
    """Its buffer, which is not sent, changes at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 4)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layer(x.flatten(1)) * (1 + self.calls)
        return out


def test_buffers_that_are_not_sent_start_equal_in_every_job(caplog):
    trainer = trainer_of(Training(batch=8), CallCounter())
    jobs = jobs_of(trainer, None)
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


def test_a_failing_job_does_not_affect_the_others(trainer, caplog):
    jobs = jobs_of(trainer, None)
    jobs[3] = replace(jobs[3], num_examples=999)
    train = Dispatcher(trainer)
    for _ in range(2):
        answers = train.train_many(jobs)
        assert [isinstance(answer, DataError) for answer in answers] == [False, False, False, True, False]
    assert not caplog.records  # the reason is not the stack
    agree(train.train_many(jobs[:3]), [trainer(job) for job in jobs[:3]])


def test_stacks_of_different_sizes_follow_each_other(trainer):
    jobs, train = jobs_of(trainer, None), Dispatcher(trainer)
    for some in (jobs, jobs[2:], jobs[:2], jobs):  # fewer, and as many again
        agree(train.train_many(some), [trainer(job) for job in some])


@pytest.mark.parametrize(
    ("outputs", "cores"),
    [
        (27_235, 1),  # clients of 17 and 31 take 3 and 4 steps of 8, 3.5 on average: 28 * 11 * 27,235 < 2**23
        (27_236, 7),  # 28 * 11 * 27,236 > 2**23
    ],
)
def test_dense_models_use_other_cores_only_for_long_jobs(outputs, cores):
    data = ClientData.separate([(torch.zeros(n, 10), torch.zeros(n, dtype=torch.int64)) for n in (17, 31)])
    assert Dispatcher(Trainer(nn.Linear(10, outputs), data, Training(batch=8))).useful_cores(7) == cores


def test_other_models_use_all_cores(trainer):
    assert Dispatcher(trainer).useful_cores(7) == 7


@dataclass(frozen=True)
class Branching(LocalRule):
    """A rule that cannot be stacked, because it looks at all entries at once."""

    stacks = False

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return (g if float(g.sum()) > 0 else -g), carry


class Replacing(nn.Module):
    """Replaces its buffer by a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 4)
        self.register_buffer("seen", torch.zeros(36))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        self.seen = 0.9 * self.seen + 0.1 * flat.mean(0).detach()
        out: Tensor = self.layer(flat - self.seen)
        return out


def test_a_model_may_replace_its_buffers(caplog):
    trainer = trainer_of(Training(batch=8), Replacing())
    jobs = jobs_of(trainer, None)
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


@dataclass(frozen=True)
class OwnLoss(LocalRule):
    """A loss that reads all fields of the job."""

    memory = ("pull",)

    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor:
        scale = 1 + job.lr + job.start.sum() + job.base[0] + job.memory["pull"].mean() + job.extras["basis"].mean()
        return nn.functional.cross_entropy(outputs, y) * scale + 0.1 * features.square().mean()


def test_a_loss_of_the_rule_reads_the_job_of_its_client(trainer, caplog):
    size = trainer.binding.layout.num_params
    jobs = jobs_of(
        trainer,
        OwnLoss(),
        lambda i: {"basis": vectors(size, i)},
        lambda i: {"pull": vectors(size, 50 + i)} if i else {},
    )
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


@dataclass(frozen=True)
class Noisy(LocalRule):
    """Draws in begin() and end(), and at every step if `always`."""

    always: bool

    def begin(self, job: LocalJob) -> Tensor:
        return torch.randn(job.start.shape, dtype=job.start.dtype)

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Tensor) -> tuple[Tensor, Tensor]:
        g = grad(w) + 0.01 * carry
        return (g + 0.01 * torch.randn_like(g) if self.always else g), carry

    def end(self, job: LocalJob, local: Tensor, carry: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        local += 0.01 * torch.randn_like(local)
        return {}, {}


@pytest.mark.parametrize("always", [False, True])
def test_random_numbers_of_a_rule_come_from_the_key_of_the_job(trainer, always, caplog):
    jobs = jobs_of(trainer, Noisy(always))
    torch.manual_seed(5)
    results, after = Dispatcher(trainer).train_many(jobs), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))  # the global generator is unchanged
    agree(results, [trainer(job) for job in jobs])
    assert ("it draws random numbers at every step" in caplog.text) == always


@dataclass(frozen=True)
class Carrying(LocalRule):
    """Begins with a vector as large as the model, and counts the vectors that still exist."""

    seen: list[int] = field(hash=False, default_factory=list)
    made: list[weakref.ref[Tensor]] = field(hash=False, compare=False, default_factory=list)

    def begin(self, job: LocalJob) -> Tensor:
        carry = torch.zeros_like(job.start)
        self.made.append(weakref.ref(carry))
        return carry

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(sum(one() is not None for one in self.made))
        return grad(w) + carry, carry


def test_the_carry_of_begin_is_stored_once(trainer, caplog):
    rule = Carrying()
    stacked(trainer, jobs_of(trainer, rule)[:4], caplog)
    assert len(rule.made) > 2
    assert set(rule.seen) == {0}


@dataclass(frozen=True)
class Listed(LocalRule):
    names: Any = ()

    __hash__ = None  # type: ignore[assignment]


def test_jobs_of_one_unhashable_rule_are_stacked(trainer, caplog):
    jobs = jobs_of(trainer, Listed(names=["a"]))
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


def test_a_rule_that_cannot_be_stacked_trains_alone(trainer, caplog):
    jobs, dispatcher = jobs_of(trainer, Branching()), Dispatcher(trainer)
    agree(dispatcher.train_many(jobs), [trainer(job) for job in jobs], tolerance=0)
    assert dispatcher.explain(Branching()) == [
        ("dense", "the model is not a chain of fully connected layers with a standard loss"),
        ("traced", "Branching sets stacks = False"),
        ("per client", None),
    ]
    assert not warnings_of(caplog)


@dataclass(frozen=True)
class Counting(LocalRule):
    """Counts its steps in a plain number, which a graph would never change."""

    def begin(self, job: LocalJob) -> int:
        return 0

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: int) -> tuple[Tensor, int]:
        return grad(w) / (carry + 1), carry + 1


def test_a_rule_that_counts_in_plain_numbers_trains_alone_with_one_warning(trainer, caplog):
    jobs, dispatcher = jobs_of(trainer, Counting()), Dispatcher(trainer)
    for _ in range(2):
        agree(dispatcher.train_many(jobs), [trainer(job) for job in jobs], tolerance=0)
    (message,) = warnings_of(caplog)
    assert "the carry of its rule changes its structure or counts in plain numbers" in message


@pytest.mark.parametrize("kernel_limit", [1, 2])
def test_a_stack_without_enough_memory_is_halved(trainer, monkeypatch, caplog, kernel_limit):
    train, sizes = TracedKernel.train, list[int]()

    def train_small_stacks(self: TracedKernel, jobs: list[Job]) -> list[Result]:
        sizes.append(len(jobs))
        if len(jobs) > kernel_limit:
            raise torch.OutOfMemoryError("no memory")
        return train(self, jobs)

    monkeypatch.setattr(TracedKernel, "train", train_small_stacks)
    jobs = jobs_of(trainer, None)
    agree(Dispatcher(trainer).train_many(jobs), [trainer(job) for job in jobs])
    # four of the five jobs are a stack; halves of halves are stacks too
    assert sizes == {2: [4, 2, 2], 1: [4, 2, 1, 1, 2, 1, 1]}[kernel_limit]
    messages = warnings_of(caplog)
    assert messages[0] == "not enough memory for stacks of 4 clients: half as many are trained at once"
    assert len(messages) == 3 - kernel_limit


def test_a_word_that_an_embedding_does_not_know_fails_for_its_client_only():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 4)).double()
    pairs = [(torch.randint(0, 5, (10, 4)), torch.randint(0, 4, (10,))) for _ in range(5)]
    pairs[1][0][3, 2] = 7
    trainer = Trainer(module, ClientData.separate(pairs), Training(batch=4))
    jobs = [replace(job, num_examples=10) for job in jobs_of(trainer, None)]
    answers = Dispatcher(trainer).train_many(jobs)
    assert [type(answer).__name__ for answer in answers] == ["Result", "IndexError", "Result", "Result", "Result"]


@dataclass(frozen=True)
class Settings(LocalRule):
    """Begins with plain numbers that differ between jobs."""

    def begin(self, job: LocalJob) -> dict[str, float]:
        return {"scale": float(job.lr)}

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: dict[str, float]) -> tuple[Tensor, Any]:
        return grad(w) * carry["scale"], carry


def test_a_carry_of_numbers_that_differ_between_jobs_trains_alone(trainer, caplog):
    jobs = jobs_of(trainer, Settings())
    agree(Dispatcher(trainer).train_many(jobs), [trainer(job) for job in jobs], tolerance=0)
    (message,) = warnings_of(caplog)
    assert "differ in a part of their rule's carry that is not a tensor" in message


def test_plain_numbers_of_a_carry_belong_to_the_graph(trainer, caplog):
    dispatcher = Dispatcher(trainer)
    for lr in (0.1, 0.3):  # the second stack must not use the graph of the first one
        jobs = [replace(job, work=replace(job.work, lr=lr)) for job in jobs_of(trainer, Settings())]
        agree(dispatcher.train_many(jobs), [trainer(job) for job in jobs])
    assert not warnings_of(caplog)


@dataclass(frozen=True)
class Detached(LocalRule):
    """Evaluates the gradient at another tensor with the memory of w."""

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        return grad(w.detach()), carry


def test_statistics_move_for_every_tensor_with_the_memory_of_w(trainer, caplog):
    jobs = jobs_of(trainer, Detached())
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


@pytest.mark.parametrize("task", [nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2, 1.0]).double()), None])
def test_a_loss_that_weights_examples_is_stacked_without_padding(task, caplog):
    """With batches of 8, the last batch of the first client has one example, which weights cannot show."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.LayerNorm(6), nn.Linear(6, 4)).double()
    pairs = [(torch.randn(n, 1, 6, 6).double(), torch.randint(0, 4, (n,))) for n in (9, 13, 14, 16)]
    trainer = Trainer(module, ClientData.separate(pairs), Training(batch=8, epochs=2), task)
    base = flatten(trainer.binding.module)
    jobs = [Job(i, i, 0, base, 0, LocalWork(), len(x), {}, seed=1) for i, (x, _) in enumerate(pairs)]
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


def test_one_example_fails_in_batch_norm_with_and_without_a_stack():
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4))
    trainer = trainer_of(Training(batch=8, steps=1), module)
    jobs = [replace(job, num_examples=1 if job.client == 1 else 5) for job in jobs_of(trainer, None)]
    answers = Dispatcher(trainer).train_many(jobs)
    assert [type(answer).__name__ for answer in answers] == ["Result", "ValueError", "Result", "Result", "Result"]


def test_graphs_that_are_first_needed_at_a_later_step_see_the_buffers_of_that_step(caplog):
    trainer = trainer_of(Training(batch=8, epochs=1), CallCounter())
    jobs = [replace(job, work=LocalWork()) for job in jobs_of(trainer, None)]
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])
