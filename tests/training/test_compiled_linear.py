"""One fully connected layer in a compiled loop is what it is in torch, whatever is stacked, on however many cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from uneven_clients import RULES, SIZES, agree, jobs_of

import offbeat.training.stacked
from offbeat.core.computed_rows import ComputedRows
from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalWork
from offbeat.core.vector import flatten
from offbeat.training.client_data import ClientData
from offbeat.training.stacked import compiled_linear
from offbeat.training.stacked.compiled_linear import CompiledLinear
from offbeat.training.stacked.stack_trainer import StackTrainer
from offbeat.training.trainer import Trainer, Training
from offbeat.workers import registry

pytest.importorskip("numba")

DESCENDED = {name: RULES[name] for name in ("plain", "proximal", "sketched")}


def trainer_of(
    classes: int = 4,
    bias: bool = True,
    dtype: torch.dtype = torch.float64,
    training: Training | None = None,
    data: Callable[[list[tuple[Tensor, Tensor]]], ClientData] = ClientData.separate,
) -> Trainer:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, classes, bias=bias)).to(dtype)
    pairs = [(torch.randn(n, 1, 6, 6, dtype=dtype), torch.randint(0, classes, (n,))) for n in SIZES]
    matrix = torch.randn(5, flatten(module).numel(), dtype=dtype)
    return Trainer(module, data(pairs), training or Training(batch=8, epochs=2), probe=lambda vector: matrix @ vector)


def loop_of(trainer: Trainer) -> CompiledLinear | None:
    return StackTrainer(trainer)._compiled


def looped(trainer: Trainer, jobs: list[Job]) -> list[Result]:
    stack = StackTrainer(trainer)
    assert stack._compiled is not None
    assert all(stack._compiled_for(job) is not None for job in jobs)
    return stack(jobs)


def test_one_step_by_hand() -> None:
    """Two classes, weights of zero: both have 1/2, so the gradient of an example x of class 1 is 1/2 x and -1/2 x. Of
    (2, 4) at a rate of 0.1 the weights become -0.1, -0.2 and 0.1, 0.2, the biases -0.05 and 0.05.
    """
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()
    data = ClientData.separate([(torch.tensor([[2.0, 4.0]]), torch.tensor([1]))], num_classes=2)
    trainer = Trainer(module, data, Training(lr=0.1, batch=3, steps=1))
    (end,) = looped(trainer, [Job(0, 0, 0, torch.zeros(6), 0, LocalWork(), 1, {}, seed=0)])
    torch.testing.assert_close(end.local, torch.tensor([-0.1, -0.2, 0.1, 0.2, -0.05, 0.05]))
    assert (end.num_examples, end.steps) == (1, 1)


@pytest.mark.parametrize("rule", DESCENDED)
def test_every_rule_that_leaves_the_descent_alone(rule: str) -> None:
    trainer = trainer_of()
    jobs = jobs_of(trainer, *DESCENDED[rule])
    agree(looped(trainer, jobs), [trainer(job) for job in jobs])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in DESCENDED and rule != "head, then body"])
def test_another_rule_has_steps_of_its_own(rule: str) -> None:
    trainer = trainer_of()
    jobs = jobs_of(trainer, *RULES[rule])
    stack = StackTrainer(trainer)
    assert stack._compiled_for(jobs[0]) is None
    agree(stack(jobs), [trainer(job) for job in jobs])


# tiles are of four examples and five classes: below, at and above these
@pytest.mark.parametrize("classes", [2, 4, 5, 6, 9, 10, 13])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 4, 8, 64])
def test_any_number_of_classes_and_examples(classes: int, bias: bool, batch: int) -> None:
    trainer = trainer_of(classes, bias, training=Training(batch=batch, epochs=2))
    jobs = jobs_of(trainer, None)
    agree(looped(trainer, jobs), [trainer(job) for job in jobs])


def test_in_float32_it_is_within_rounding() -> None:
    trainer = trainer_of(10, dtype=torch.float32)
    jobs = jobs_of(trainer, Proximal(mu=0.3))
    agree(looped(trainer, jobs), [trainer(job) for job in jobs], tolerance=2e-6)


def shared(pairs: list[tuple[Tensor, Tensor]]) -> ClientData:
    """Rows of one table, out of order."""
    order = torch.randperm(sum(SIZES))
    x, y = (torch.cat(part) for part in zip(*pairs, strict=True))
    return ClientData.shared(x, y, list(torch.split(order, list(SIZES))))


def drawn(pairs: list[tuple[Tensor, Tensor]]) -> ClientData:
    """Rows that nobody keeps: they are computed when asked for."""

    x, y = (torch.cat(part) for part in zip(*pairs, strict=True))
    rows = ComputedRows(dict(enumerate(SIZES)), lambda client: torch.arange(SIZES[client]) * 3 % sum(SIZES))
    return ClientData.shared(x, y, rows)


@pytest.mark.parametrize("data", [shared, drawn])
def test_wherever_examples_lie(data: Any) -> None:
    trainer = trainer_of(data=data)
    jobs = jobs_of(trainer, None)
    agree(looped(trainer, jobs), [trainer(job) for job in jobs])


class Standardised:
    by_example = True

    def __call__(self, module: nn.Module, inputs: Any) -> Any:
        return ((inputs[0].double() / 255 - 0.5) / 0.25,)


def test_bytes_pass_the_door_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
    module.register_forward_pre_hook(Standardised())
    pairs = [(torch.randint(0, 256, (n, 3, 4), dtype=torch.uint8), torch.randint(0, 3, (n,))) for n in SIZES]
    trainer = Trainer(module, ClientData.separate(pairs), Training(batch=8))
    jobs = jobs_of(trainer, None)
    agree(looped(trainer, jobs), [trainer(job) for job in jobs])
    monkeypatch.setattr(compiled_linear, "MAX_TRANSFORMED_BYTES", 8 * 12 * sum(SIZES) - 1)
    assert loop_of(trainer) is None  # more than may be kept: they pass it at every step


def test_what_a_client_comes_to_depends_neither_on_its_stack_nor_on_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_linear, "MIN_PRODUCTS_PER_THREAD", 1)
    trainer = trainer_of(10, dtype=torch.float32)
    jobs = jobs_of(trainer, None)
    alone = [looped(trainer, [job])[0].local for job in jobs]
    for cores in (1, 2, 3, 8):
        stack = StackTrainer(trainer)
        assert stack.use_threads(cores)
        assert stack.useful_cores(cores) == cores
        for result, other in zip(stack(jobs), alone, strict=True):
            assert torch.equal(result.local, other)
        stack.close()
        stack.close()


def test_the_worker_spreads_over_threads_and_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_linear, "MIN_PRODUCTS_PER_THREAD", 1)  # jobs as small as these are not worth a thread
    trainer = trainer_of()
    worker = registry.make_worker(registry.parse_worker("batched:2"), trainer)
    jobs = jobs_of(trainer, None)
    for job in jobs:
        worker.submit(job, 1.0)
    agree(worker.collect([job.ticket for job in jobs]), [trainer(job) for job in jobs])
    assert os_threads()
    worker.close()
    assert not os_threads()


def os_threads() -> list[str]:
    import threading

    return [thread.name for thread in threading.enumerate() if thread.name.startswith("offbeat-clients")]


def test_what_is_not_finite_stays_so() -> None:
    """A client that diverges is for the gate to refuse."""
    trainer = trainer_of(dtype=torch.float32)
    jobs = jobs_of(trainer, None)
    spoilt = replace(jobs[0], base=jobs[0].base.clone().index_fill_(0, torch.tensor([3]), nan))
    wild = replace(jobs[1], work=replace(jobs[1].work, lr=1e38, steps=50))
    results = looped(trainer, [spoilt, wild, jobs[2]])
    assert not torch.isfinite(results[0].local).all()
    assert not torch.isfinite(results[1].local).all()
    agree(results[2:], [trainer(jobs[2])], tolerance=2e-6)


def test_a_base_that_does_not_fit_is_refused_before_a_loop_sees_it() -> None:
    trainer = trainer_of()
    job = jobs_of(trainer, None)[0]
    (answer,) = StackTrainer(trainer).train_many([replace(job, base=job.base[:-1])])
    assert isinstance(answer, Exception)
    loop = loop_of(trainer)
    assert loop is not None
    for base in (job.base[:-1], job.base.float()):
        with pytest.raises(ValueError, match="where models are of 148 entries"):
            loop.train([replace(job, base=base)])
    (spread,) = StackTrainer(trainer)([replace(job, base=job.base.repeat_interleave(2)[::2])])
    agree([spread], [trainer(job)])  # not contiguous, but all there


def test_rows_and_labels_that_are_not_there_are_noticed() -> None:
    """Whoever computes rows may compute wrong ones, and tensors that were checked may be changed: a loop that believed
    them would read anything.
    """
    x, y = torch.randn(20, 36).double(), torch.randint(0, 4, (20,))
    module = nn.Linear(36, 4).double()
    base = flatten(module)
    jobs = [Job(i, i, 0, base, 0, LocalWork(), 5, {}, seed=0) for i in range(3)]
    rows = [torch.arange(5), torch.arange(16, 21), torch.arange(-1, 4)]
    wrong = Trainer(
        module, ClientData.shared(x, y, ComputedRows({0: 5, 1: 5, 2: 5}, rows.__getitem__)), Training(batch=2)
    )
    answers = StackTrainer(wrong).train_many(jobs)
    assert [isinstance(answer, IndexError) for answer in answers] == [False, True, True]
    trainer = Trainer(module, ClientData.separate([(x, y)]), Training(batch=2))
    loop = loop_of(trainer)
    assert loop is not None
    y[7] = 4
    with pytest.raises(IndexError, match="client 0"):
        loop.train([replace(jobs[0], num_examples=20)])


def test_labels_need_not_lie_together() -> None:
    """The last column of a table, one label for everybody."""
    table = torch.randint(0, 4, (40, 3))
    x, module = torch.randn(40, 36).double(), nn.Linear(36, 4).double()
    for y in (table[:, -1], torch.tensor([1]).expand(40)):
        trainer = Trainer(module, ClientData.separate([(x, y)], num_classes=4), Training(batch=8))
        job = Job(0, 0, 0, flatten(module), 0, LocalWork(), 40, {}, seed=0)
        agree(looped(trainer, [job]), [trainer(job)])


def test_inputs_that_lie_in_another_way_are_stacked() -> None:
    module = nn.Linear(36, 4).double()
    for x in (
        torch.randn(36, 40).double().T,
        torch.randn(40, 72).double()[:, ::2],
        torch.randn(1, 36).double().expand(40, 36),
    ):
        trainer = Trainer(module, ClientData.separate([(x, torch.arange(40) % 4)]), Training(batch=8))
        job = Job(0, 0, 0, flatten(module), 0, LocalWork(), 40, {}, seed=0)
        assert loop_of(trainer) is None
        agree(StackTrainer(trainer)([job]), [trainer(job)])


def test_examples_that_went_away_are_noticed() -> None:
    x, y, module = torch.randn(40, 36).double(), torch.arange(40) % 4, nn.Linear(36, 4).double()
    trainer = Trainer(module, ClientData.separate([(x, y)]), Training(batch=8))
    loop = loop_of(trainer)
    assert loop is not None
    x.resize_(30, 36)
    with pytest.raises(IndexError, match="client 0"):
        loop.train([Job(0, 0, 0, flatten(module), 0, LocalWork(), 40, {}, seed=0)])


@pytest.mark.parametrize("batch", [512, 4096])
def test_a_large_batch_is_rounded_once_a_step(batch: int) -> None:
    """Weights of size one and small steps: in float32 a gradient that is added to them four examples at a time would be
    off by a hundredth of itself.
    """
    torch.manual_seed(0)
    module = nn.Linear(50, 10)
    x, y = torch.randn(4096, 50), torch.randint(0, 10, (4096,))
    base, ends = torch.randn(510), []
    for dtype in (torch.float64, torch.float32):
        trainer = Trainer(
            module.to(dtype), ClientData.separate([(x.to(dtype), y)]), Training(lr=0.01, batch=batch, steps=10)
        )
        job = Job(0, 0, 0, base.to(dtype), 0, LocalWork(), 4096, {}, seed=0)
        ends += [looped(trainer, [job])[0].local.double(), trainer(job).local.double()]
    exact, exact_alone, ours, alone = ends
    torch.testing.assert_close(exact, exact_alone)
    moved = (exact - base).norm()
    assert (ours - exact).norm() / moved < max(2 * (alone - exact).norm() / moved, 1e-5)


def test_a_batch_without_end_is_all_of_a_clients_examples() -> None:
    trainer = trainer_of(training=Training(batch=2**62, epochs=2))
    jobs = jobs_of(trainer, None)
    agree(looped(trainer, jobs), [trainer(job) for job in jobs])


@pytest.mark.parametrize("lr", [1, 0.5])
def test_a_rate_may_be_a_whole_number(lr: float) -> None:
    trainer = trainer_of(training=Training(batch=8, lr=lr))
    jobs = [replace(job, work=LocalWork(rule=job.work.rule)) for job in jobs_of(trainer, Proximal(mu=1))]
    agree(looped(trainer, jobs), [trainer(job) for job in jobs])


def test_rates_and_steps_of_many_are_those_of_each() -> None:
    trainer = trainer_of(training=Training(batch=8, lr=0.3, lr_decay=0.9, epochs=2))
    for work in (LocalWork(), LocalWork(steps=5), LocalWork(epochs=3, lr=0.7)):
        jobs = [replace(job, work=work) for job in jobs_of(trainer, None)]
        plans = [trainer.make_plan(job) for job in jobs]
        assert trainer.rates_and_steps(jobs) == [(plan.learning_rate(0), plan.steps) for plan in plans]


def test_no_thread_is_at_it_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are told addresses: what lies there goes with the call that was interrupted."""
    monkeypatch.setattr(compiled_linear, "MIN_PRODUCTS_PER_THREAD", 1)
    trainer = trainer_of()
    loop = loop_of(trainer)
    assert loop is not None
    loop.use_threads(2)
    ended: list[int] = []

    class Slow:
        calls = 0

        def train_jobs(self, *told: Any) -> int:
            self.calls += 1
            if self.calls == 1:
                time.sleep(0.05)  # in the other thread: it was begun first
                ended.append(1)
                return -1
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_loops", Slow())
    with pytest.raises(KeyboardInterrupt):
        loop.train(jobs_of(trainer, None))
    assert ended == [1]


def test_a_loop_that_cannot_be_had_is_a_stack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        def train_jobs(self, *told: Any) -> int:
            raise OSError("No space left on device")

    trainer = trainer_of()
    jobs = jobs_of(trainer, None)
    stack = StackTrainer(trainer)
    monkeypatch.setattr(stack._compiled, "_loops", Full())
    for _ in range(2):
        agree(stack(jobs), [trainer(job) for job in jobs])
    (record,) = caplog.records
    assert record.getMessage().endswith("stacked instead (OSError: No space left on device)")


def test_other_rules_are_stacked_in_stacks_of_their_size() -> None:
    trainer = trainer_of()
    stack = StackTrainer(trainer)
    assert stack.max_jobs > stack._stack > 0
    jobs = jobs_of(trainer, *RULES["decayed gradients"])
    stack._stack = 2
    agree(stack(jobs), [trainer(job) for job in jobs])


def test_more_examples_than_a_client_has_are_refused() -> None:
    trainer = trainer_of()
    job = jobs_of(trainer, None)[0]
    (answer,) = StackTrainer(trainer).train_many([replace(job, num_examples=SIZES[0] + 1)])
    assert "cannot train on" in str(answer)


@pytest.mark.parametrize(
    "training",
    [
        Training(batch=8, momentum=0.9),
        Training(batch=8, weight_decay=0.1),
        Training(batch=8, optimizer="adam"),
        Training(batch=8, bn="local"),
    ],
)
def test_other_trainings_are_stacked_as_before(training: Training) -> None:
    trainer = trainer_of(training=training)
    assert loop_of(trainer) is None


def test_other_models_are_stacked_as_before() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 4)).double()
    assert loop_of(Trainer(module, trainer_of().data, Training(batch=8))) is None


def test_without_numba_clients_are_stacked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compiled_linear, "find_spec", lambda name: None)
    compiled_linear._load_loops.cache_clear()
    try:
        trainer = trainer_of()
        jobs = jobs_of(trainer, None)
        stack = StackTrainer(trainer)
        assert not stack.use_threads(2)
        agree(stack(jobs), [trainer(job) for job in jobs])
        assert not caplog.records
    finally:
        compiled_linear._load_loops.cache_clear()


def test_a_numba_that_cannot_be_used_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(
        sys.modules, "offbeat.training.stacked.linear_loops", None
    )  # an import fails, as with a numpy it does not know
    monkeypatch.delattr(offbeat.training.stacked, "linear_loops", raising=False)
    compiled_linear._load_loops.cache_clear()
    try:
        for _ in range(2):
            assert loop_of(trainer_of()) is None
        (record,) = caplog.records
        assert "loops are not compiled" in record.getMessage()
    finally:
        compiled_linear._load_loops.cache_clear()


TWICE = """
import hashlib, torch
from torch import nn
from offbeat.training.client_data import ClientData
from offbeat.training.stacked.stack_trainer import StackTrainer
from offbeat.training.trainer import Trainer, Training
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.vector import flatten
torch.manual_seed(0)
module = nn.Linear(300, 10)
trainer = Trainer(module, ClientData.separate([(torch.randn(70, 300), torch.arange(70) % 10)]), Training(batch=16))
(end,) = StackTrainer(trainer)([Job(0, 0, 0, flatten(module), 0, LocalWork(), 70, {}, seed=0)])
print(hashlib.sha256(end.local.numpy().tobytes()).hexdigest())
"""


@pytest.mark.slow  # it is compiled anew
def test_the_process_that_compiles_has_the_bits_of_those_that_find_it_compiled(tmp_path: Path) -> None:
    ends = [
        subprocess.run(
            [sys.executable, "-c", TWICE],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert ends[0] == ends[1]
    assert list(tmp_path.rglob("*.nbc"))  # it was kept
