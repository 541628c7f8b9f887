"""A stack of clients is trained as each of them would be alone: every rule, ragged in every way."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from uneven_clients import RULES, Net, agree, jobs_of, trainer_of, vectors

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.jobs import CLIENT_STATISTICS, Job, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import Gradient, LocalJob, LocalRule, LocalWork
from offbeat.core.strategies.fedpsa.sketch import Sketched
from offbeat.core.vector import flatten
from offbeat.training.client_data import ClientData
from offbeat.training.regularization import DropoutMasks, hashed_uniform, step_keys
from offbeat.training.stacked import lstm, stack_batches
from offbeat.training.stacked.job_stack import JobStack
from offbeat.training.stacked.stack_trainer import StackTrainer
from offbeat.training.trainer import Trainer, Training


@pytest.fixture
def trainer() -> Trainer:
    return trainer_of(Training(batch=8, epochs=2))


def stacked(trainer: Trainer, jobs: list[Job], caplog: Any) -> list[Result]:
    results = StackTrainer(trainer)(jobs)
    assert not caplog.records, caplog.text  # it did stack
    return results


@pytest.mark.parametrize("name", RULES)
def test_every_rule_on_a_stack_is_every_rule_one_by_one(trainer, name, caplog):
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
def test_so_it_is_with_every_optimizer_and_with_pictures_shown_differently(training, caplog):
    trainer = trainer_of(training)
    jobs = jobs_of(trainer, None)
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


def test_so_it_is_where_clients_keep_their_statistics(caplog):
    trainer = trainer_of(Training(batch=8, bn="local"))
    jobs = jobs_of(
        trainer,
        Sketched(k=5),
        kept=lambda i: {CLIENT_STATISTICS: torch.full((7,), 0.5 + i, dtype=torch.float64)} if i else {},
    )
    alone = [trainer(job) for job in jobs]
    agree(stacked(trainer, jobs, caplog), alone)
    assert all(result.memory[CLIENT_STATISTICS].shape == (7,) for result in alone)


def test_jobs_of_different_rules_are_stacked_apart_and_answered_in_order(trainer, caplog):
    jobs = [*jobs_of(trainer, None)[:2], *jobs_of(trainer, Proximal(mu=0.1))[2:]]
    agree(stacked(trainer, [jobs[i] for i in (3, 0, 4, 1, 2)], caplog), [trainer(jobs[i]) for i in (3, 0, 4, 1, 2)])


def test_what_does_not_travel_is_the_same_for_every_client_of_a_stack(caplog):
    class Resident(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(36, 4)
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            out: Tensor = self.layer(x.flatten(1)) * (1 + self.calls)
            return out

    trainer = trainer_of(Training(batch=8), Resident())
    jobs = jobs_of(trainer, None)
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


class Reading(nn.Module):
    """An LSTM whose states and cells are both looked at."""

    def __init__(self, batch_first: bool, bias: bool = True, layers: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)  # so that the series has a gradient too
        self.lstm = nn.LSTM(5, 3, batch_first=batch_first, bias=bias, num_layers=layers)
        self.head = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        series = self.first(x.flatten(1, 2))
        time = 1 if self.lstm.batch_first else 0
        states, (last, cells) = self.lstm(series if time == 1 else series.transpose(0, 1))
        out: Tensor = self.head(torch.cat([states.mean(time), last[0], cells[0]], 1))
        return out


@pytest.mark.parametrize(("batch_first", "bias"), [(True, True), (False, False)])
def test_series_of_a_stack_are_read_as_torch_reads_them(batch_first, bias, caplog):
    trainer = trainer_of(Training(batch=8), Reading(batch_first, bias))
    jobs = jobs_of(trainer, None)
    alone = [trainer(job) for job in jobs]
    agree(stacked(trainer, jobs, caplog), alone)
    assert "forward" not in vars(trainer.binding.module.lstm)  # given back


@pytest.mark.parametrize("why", ["layers", "long"])
def test_series_that_cannot_be_stacked_or_are_too_long_to_pay_are_read_one_by_one(why, caplog, monkeypatch):
    monkeypatch.setattr(lstm, "LONG_SERIES", 16 if why == "layers" else 5)
    trainer = trainer_of(Training(batch=8), Reading(True, layers=2 if why == "layers" else 1))
    jobs = jobs_of(trainer, None)
    agree(StackTrainer(trainer)(jobs), [trainer(job) for job in jobs], tolerance=0)
    assert len(caplog.records) == 1


def test_a_job_that_fails_fails_alone(trainer, caplog):
    jobs = jobs_of(trainer, None)
    jobs[3] = replace(jobs[3], num_examples=999)
    train = StackTrainer(trainer)
    for _ in range(2):
        answers = train.train_many(jobs)
        assert [isinstance(answer, DataError) for answer in answers] == [False, False, False, True, False]
    assert not caplog.records  # it says nothing about stacking
    agree(train(jobs[:3]), [trainer(job) for job in jobs[:3]])


def test_a_stack_is_as_large_as_its_memory_allows(trainer):
    size = trainer.binding.layout.size
    one = 8 * (10 * size + 16 * 8 * 36)  # bytes of a double, vectors of a model, copies of a batch of 8 by 36
    assert [StackTrainer(trainer, memory=memory).max_jobs for memory in (0, one, 5 * one + 1)] == [1, 1, 5]


def test_the_next_stack_finds_other_examples_where_the_last_had_its_own(trainer):
    jobs, train = jobs_of(trainer, None), StackTrainer(trainer)
    for some in (jobs, jobs[2:], jobs[:2], jobs):  # fewer, and as many again
        agree(train(some), [trainer(job) for job in some])


@pytest.mark.parametrize(
    ("outputs", "hands"),
    [
        (27_235, 1),  # clients of 17 and 31 take 3 and 4 steps of 8, 3.5 on average: 28 * 11 * 27,235 < 2**23
        (27_236, 7),  # 28 * 11 * 27,236 > 2**23
    ],
)
def test_a_chain_goes_to_other_cores_only_where_its_jobs_are_worth_the_way(outputs, hands):
    data = ClientData.separate([(torch.zeros(n, 10), torch.zeros(n, dtype=torch.int64)) for n in (17, 31)])
    training = Training(batch=8, momentum=0.5)  # which no loop is compiled for
    assert StackTrainer(Trainer(nn.Linear(10, outputs), data, training)).useful_cores(7) == hands


def test_models_that_are_mapped_go_to_all_cores(trainer):
    assert StackTrainer(trainer).useful_cores(7) == 7


@pytest.mark.parametrize("training", [Training(batch=8, epochs=2, augment="crop-flip"), Training(batch=8, steps=6)])
@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("near", [1, 2 * 3 * 8 * 36, 2**20])  # one step at a time, two, or the whole epoch
def test_clients_in_step_are_gathered_together_and_trained_the_same(near, own, chain, training, caplog, monkeypatch):
    monkeypatch.setattr(stack_batches, "MAX_GATHERED_VALUES", near)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)) if chain else Net()
    x, y = torch.randn(60, 1, 6, 6, dtype=torch.float64), torch.randint(0, 4, (60,))
    rows = torch.randperm(60).split(17)  # the last one has fewer
    data = ClientData.separate([(x[r], y[r]) for r in rows]) if own else ClientData.shared(x, y, rows)
    trainer = Trainer(module.double(), data, training)
    base = flatten(trainer.binding.module)
    jobs = [Job(i, i, i, base * (1 + 0.1 * i), i, LocalWork(lr=0.1 / (1 + i)), 17, {}, seed=3) for i in range(3)]
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


class Drawing(nn.Module):
    """Draws by itself, where nobody can repeat it for a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.dropout(self.layer(x.flatten(1)), 0.5, self.training)
        return out


def test_a_model_that_draws_by_itself_is_trained_one_by_one_which_is_said_once(caplog):
    trainer = trainer_of(Training(batch=8), Drawing())
    jobs = jobs_of(trainer, None)
    train = StackTrainer(trainer)
    for _ in range(2):
        agree(train(jobs), [trainer(job) for job in jobs], tolerance=0)
    assert len(caplog.records) == 1
    assert "trained one by one: they cannot be stacked" in caplog.text


@dataclass(frozen=True)
class Branching(LocalRule):
    """Looks at all of what it is given: not at each client by itself."""

    stacks = False

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return (g if float(g.sum()) > 0 else -g), carry


def test_a_rule_that_says_so_is_trained_one_by_one(trainer, caplog):
    jobs = jobs_of(trainer, Branching())
    train = StackTrainer(trainer)
    for _ in range(2):
        agree(train(jobs), [trainer(job) for job in jobs], tolerance=0)
    assert [r.getMessage() for r in caplog.records] == [
        "clients are trained one by one: they cannot be stacked (Branching says so)"
    ]


class Replacing(nn.Module):
    """Puts a new tensor where its buffer was."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 4)
        self.register_buffer("seen", torch.zeros(36))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        self.seen = 0.9 * self.seen + 0.1 * flat.mean(0).detach()
        out: Tensor = self.layer(flat - self.seen)
        return out


def test_a_buffer_that_a_model_replaces_is_not_lost(caplog):
    trainer = trainer_of(Training(batch=8), Replacing())
    jobs = jobs_of(trainer, None)
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


@dataclass(frozen=True)
class OwnLoss(LocalRule):
    """A loss that looks at everything it may."""

    memory = ("pull",)

    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor:
        scale = 1 + job.lr + job.start.sum() + job.base[0] + job.memory["pull"].mean() + job.extras["basis"].mean()
        return nn.functional.cross_entropy(outputs, y) * scale + 0.1 * features.square().mean()


def test_a_loss_of_the_rules_own_sees_its_clients_job(trainer, caplog):
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
    """Draws when a job begins and when it ends; and, if told to, at every step."""

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
def test_what_a_rule_draws_comes_from_its_jobs_key(trainer, always, caplog):
    jobs = jobs_of(trainer, Noisy(always))
    torch.manual_seed(5)
    results, after = StackTrainer(trainer)(jobs), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))  # nobody else's draws were moved
    agree(results, [trainer(job) for job in jobs])
    assert ("draws random numbers at every step" in caplog.text) == always


@dataclass(frozen=True)
class Carrying(LocalRule):
    """Begins with a vector as large as the model, and looks who else still has theirs."""

    seen: list[int] = field(hash=False, default_factory=list)
    made: list[weakref.ref[Tensor]] = field(hash=False, compare=False, default_factory=list)

    def begin(self, job: LocalJob) -> Tensor:
        carry = torch.zeros_like(job.start)
        self.made.append(weakref.ref(carry))
        return carry

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(sum(one() is not None for one in self.made))
        return grad(w) + carry, carry


def test_what_clients_begin_with_is_held_once(trainer, caplog):
    rule = Carrying()
    stacked(trainer, jobs_of(trainer, rule), caplog)
    assert len(rule.made) > 2
    assert set(rule.seen) == {0}  # the stack has them, and nobody else


@dataclass(frozen=True)
class Listed(LocalRule):
    names: Any = ()

    __hash__ = None  # type: ignore[assignment]


def test_a_rule_that_cannot_be_hashed_is_stacked_with_itself(trainer, caplog):
    jobs = jobs_of(trainer, Listed(names=["a"]))
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])


def test_where_memory_is_short_the_stack_is_halved(trainer, monkeypatch, caplog):
    whole, sizes = JobStack.descend, list[int]()

    def cramped(self: JobStack) -> None:
        sizes.append(len(self._hooks))
        if len(self._hooks) > 2:
            raise torch.OutOfMemoryError("no")
        whole(self)

    monkeypatch.setattr(JobStack, "descend", cramped)
    monkeypatch.setattr("offbeat.training.stacked.stack_trainer.MIN_STACKED_JOBS", 2)
    jobs = jobs_of(trainer, None)
    agree(stacked(trainer, jobs, caplog), [trainer(job) for job in jobs])
    assert sizes == [5, 2, 3, 2]  # 5 = 2 + 3, 3 = 1 + 2, and one alone is no stack


def test_a_job_that_cannot_be_done_says_so_itself(trainer):
    jobs = jobs_of(trainer, None)
    jobs[3] = replace(jobs[3], num_examples=999)
    with pytest.raises(DataError, match="client 3 cannot train on 999 examples"):
        StackTrainer(trainer)(jobs)


# ---------------------------------------------------------------- dropout


def test_numbers_are_those_of_splitmix64():
    mask = (1 << 64) - 1

    def mixed(z: int) -> int:
        z = ((z & mask) ^ (z & mask) >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    golden, key = 0x9E3779B97F4A7C15, 12345678901234567
    expected = [(mixed(i * golden + mixed(key)) >> 40) / 2**24 for i in range(6)]
    assert hashed_uniform(torch.tensor(key), (2, 3)).flatten().tolist() == expected


def test_masks_differ_from_step_to_step_and_are_not_each_other_moved_along():
    noise = torch.tensor(7)
    first, second = (hashed_uniform(step_keys(noise, step), (10_000,)) for step in (0, 1))
    for move in (0, 1, 2):
        near = torch.corrcoef(
            torch.stack([first[move:-2] if move else first[:-2], second[: 10_000 - 2 - move if move else -2]])
        )[0, 1]
        assert abs(float(near)) < 0.05
    assert abs(float(first.mean()) - 0.5) < 0.02


def test_dropped_are_as_many_as_asked_for_and_the_rest_makes_up_for_it():
    layer = nn.Dropout(0.25)
    masks = DropoutMasks(layer)
    with masks.install():
        masks.set_key(torch.tensor(3))
        out = layer(torch.ones(40, 250))
        again = layer(torch.ones(40, 250))  # called twice in one pass: another mask
        masks.set_key(torch.tensor(3))
        assert torch.equal(layer(torch.ones(40, 250)), out)
    assert not torch.equal(out, again)
    assert out.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert abs(float((out == 0).float().mean()) - 0.25) < 0.02
    assert "forward" not in vars(layer)  # given back


def test_whole_channels_are_dropped_where_the_layer_drops_channels():
    layer = nn.Dropout2d(0.5)
    masks = DropoutMasks(layer)
    with masks.install():
        masks.set_key(torch.tensor(1))
        out = layer(torch.ones(8, 16, 3, 3)).flatten(2)
    assert bool(((out == 0).all(-1) | (out == 2).all(-1)).all())
    assert 0 < float((out == 0).float().mean()) < 1


class Recomputing(nn.Module):
    """One dropout layer, or the same one twice, in a part whose activations may be computed again for the backward
    pass.
    """

    def __init__(self, again: bool, twice: bool = False) -> None:
        super().__init__()
        self.again, self.twice = again, twice
        self.first, self.drop, self.last = nn.Linear(36, 20), nn.Dropout(0.5), nn.Linear(20, 4)

    def part(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(torch.tanh(self.first(x)))
        return self.drop(out) if self.twice else out

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        out: Tensor = self.last(checkpoint(self.part, flat, use_reentrant=False) if self.again else self.part(flat))
        return out


def test_activations_that_are_computed_again_are_dropped_alike():
    module = Recomputing(again=False)
    plain = trainer_of(Training(batch=8), module)
    module.again = True
    again = trainer_of(Training(batch=8), module)
    for one, other in zip(jobs_of(plain, None), jobs_of(again, None), strict=True):
        torch.testing.assert_close(again(other).local, plain(one).local, rtol=1e-12, atol=1e-12)


def test_which_of_two_calls_is_repeated_cannot_be_told_and_is_refused():
    trainer = trainer_of(Training(batch=8), Recomputing(again=True, twice=True))
    with pytest.raises(ConfigError, match="called 2 times in a model that recomputes activations"):
        trainer(jobs_of(trainer, None)[0])


def test_a_layer_of_ones_own_is_left_alone():
    class Other(nn.Dropout2d):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    assert not DropoutMasks(nn.Sequential(Other(0.5)))
