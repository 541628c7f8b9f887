"""Local work: the descent through phases, the rule's memory, the proximal pull."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from core import messages
from offbeat.core.errors import ConfigError
from offbeat.core.jobs import Job
from offbeat.core.local_rules import PLAIN_RULE, Proximal, with_proximal
from offbeat.core.protocol import Gradient, Layout, LocalJob, LocalRule, LocalWork, Phase
from offbeat.testing import TinyClients, layout_of, optimum, tiny_layout, tiny_world
from offbeat.testing.tiny_worlds import Sgd
from offbeat.training.descent import descend, make_local_job

LAYOUT = layout_of([("body", (2,), "param"), ("mean", (1,), "buffer"), ("head", (1,), "param")])


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def job_at(*base: float, work: LocalWork = LocalWork(), memory: Mapping[str, Tensor] | None = None) -> LocalJob:
    return make_local_job(Job(0, 0, 0, vector(*base), 0, work, 10, memory or {}, seed=0), LAYOUT, lr=0.5)


def towards_four(phase: Phase) -> Iterable[Gradient]:
    """Batches of the loss 0.5 ||w - 4||^2."""
    return [lambda point: point - 4.0] * (phase.steps or 0)


class Heavy:
    """Momentum one half: shows whether state is carried from phase to phase."""

    def __init__(self) -> None:
        self.velocity: Tensor | None = None

    def step(self, w: Tensor, d: Tensor, lr: float) -> None:
        self.velocity = d if self.velocity is None else 0.5 * self.velocity + d
        w.sub_(lr * self.velocity)


def test_a_rule_sees_the_trainable_entries_and_memory_starts_at_zero() -> None:
    @dataclass(frozen=True)
    class Remembering(LocalRule):
        memory: ClassVar[tuple[str, ...]] = ("h", "g")

    job = job_at(1, 2, 9, 3, work=LocalWork(rule=Remembering()), memory={"g": vector(5, 5, 5), "old": vector(1)})
    assert job.start.tolist() == [1, 2, 3]
    assert {name: kept.tolist() for name, kept in job.memory.items()} == {"h": [0, 0, 0], "g": [5, 5, 5]}


def test_plain_descent_takes_the_steps_it_was_given() -> None:
    job = job_at(0, 2, 9, 4)
    w = job.start.clone()
    steps, _ = descend(PLAIN_RULE, job, [Phase(steps=2)], w, towards_four, Sgd)
    # w := w - .5 (w - 4), twice: the distance to 4 shrinks to a quarter: 0 -> 3, 2 -> 3.5, 4 -> 4
    assert steps == 2
    assert w.tolist() == [3, 3.5, 4]


def test_a_phase_moves_only_the_slices_it_names() -> None:
    job = job_at(0, 0, 9, 0)
    w = job.start.clone()
    phases = [Phase(steps=1, slices=("head",)), Phase(steps=2, slices=("body",), lr=0.25)]
    steps, _ = descend(PLAIN_RULE, job, phases, w, towards_four, Sgd)
    # head: one step of .5 from 0 to 2; body: two of .25: 0 -> 1 -> 1.75
    assert steps == 3
    assert w.tolist() == [1.75, 1.75, 2]


def test_frozen_slices_do_not_move_even_with_momentum_and_optimizers_start_fresh() -> None:
    job = job_at(0, 0, 9, 0)
    w = job.start.clone()
    descend(PLAIN_RULE, job, [Phase(steps=1), Phase(steps=1, slices=("head",))], w, towards_four, Heavy)
    # first step 0 -> 2 everywhere; then velocity is fresh: head 2 - .5 (2 - 4) = 3, not 2 - .5 (-2 - 2) = 4
    assert w.tolist() == [2, 2, 3]


def test_phases_with_leading_client_dimensions_move_every_client() -> None:
    job = job_at(0, 0, 9, 0)
    w = torch.zeros(2, 3, dtype=torch.float64)
    descend(PLAIN_RULE, job, [Phase(steps=1, slices=("head",))], w, towards_four, Sgd)
    assert w.tolist() == [[0, 0, 2], [0, 0, 2]]


def test_the_carry_goes_from_begin_through_every_step() -> None:
    @dataclass(frozen=True)
    class Counting(LocalRule):
        def begin(self, job: LocalJob) -> Any:
            return 10

        def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
            return grad(w), carry + 1

    job = job_at(0, 0, 9, 0)
    _, carry = descend(Counting(), job, [Phase(steps=2), Phase(steps=3)], job.start.clone(), towards_four, Sgd)
    assert carry == 15


def test_the_default_phase_repeats_what_the_work_asks() -> None:
    assert PLAIN_RULE.phases(LocalWork(epochs=2, lr=0.1)) == (Phase(epochs=2, lr=0.1),)


@pytest.mark.parametrize("setting", [{"steps": 0}, {"epochs": 0}, {"lr": 0.0}, {"steps": 1, "epochs": 1}])
def test_work_that_cannot_be_meant_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=messages.INVALID_WORK):
        LocalWork(**setting)


def test_the_proximal_pull_is_the_gradient_of_the_squared_distance() -> None:
    job = job_at(1, 1, 9, 1)
    d, _ = Proximal(mu=0.5).direction(job, vector(3, 1, 0), lambda point: vector(1, 1, 1), None)
    # 1 + .5 (3 - 1) = 2; 1 + .5 (1 - 1) = 1; 1 + .5 (0 - 1) = .5
    assert d.tolist() == [2, 1, 0.5]


def test_two_proximal_steps_worked_by_hand() -> None:
    job = job_at(0, 0, 9, 0)
    w = job.start.clone()
    descend(Proximal(mu=1.0), job, [Phase(steps=2)], w, towards_four, Sgd)
    # step 1: d = (0 - 4) + (0 - 0) = -4, w = 2; step 2: d = (2 - 4) + (2 - 0) = 0, w stays 2
    assert w.tolist() == [2, 2, 2]


def test_no_pull_costs_nothing_and_a_pull_keeps_the_rest_of_the_work() -> None:
    work = LocalWork(steps=3, lr=0.1)
    assert with_proximal(work, 0.0) is work
    assert with_proximal(work, 0.2) == LocalWork(steps=3, lr=0.1, rule=Proximal(mu=0.2))


def test_a_pull_is_not_put_on_top_of_another_rule() -> None:
    with pytest.raises(ConfigError, match=messages.SECOND_RULE):
        with_proximal(LocalWork(rule=Proximal(mu=1.0)), 0.1)
    with pytest.raises(ConfigError, match=messages.NEGATIVE):
        Proximal(mu=-1.0)


def tiny_job(layout: Layout, work: LocalWork = LocalWork(), memory: Mapping[str, Tensor] | None = None) -> Job:
    base = tiny_world(buffers=not layout.params_only).model
    return Job(
        ticket=3, client=1, index=0, base=base, base_version=0, work=work, num_examples=20, memory=memory or {}, seed=0
    )


def test_tiny_clients_descend_towards_their_own_optimum() -> None:
    layout = tiny_layout()
    job = tiny_job(layout)
    result = TinyClients(layout)(job)
    centre = optimum(0, 1, 9)
    # two steps of 1/8: the distance shrinks to (7/8)^2 = 49/64, exactly
    assert torch.equal(result.local - centre, (job.base - centre) * 49 / 64)
    assert (result.ticket, result.steps, result.num_examples) == (3, 2, 20)


def test_tiny_clients_move_buffers_a_little_and_count_their_steps() -> None:
    layout = tiny_layout(buffers=True)
    job = tiny_job(layout, LocalWork(epochs=3))
    result = TinyClients(layout)(job)
    moved = result.local - job.base
    assert 0 < moved[9:11].abs().max() <= 0.5
    assert moved[11] == result.steps == 6  # two steps an epoch


def test_tiny_clients_run_the_rule_with_its_memory_and_extras() -> None:
    @dataclass(frozen=True)
    class Remembering(LocalRule):
        memory: ClassVar[tuple[str, ...]] = ("h",)

        def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
            return {"mark": job.memory["h"][:1]}, {"h": job.memory["h"] + 1}

    layout = tiny_layout()
    first = TinyClients(layout)(tiny_job(layout, LocalWork(rule=Remembering())))
    second = TinyClients(layout)(tiny_job(layout, LocalWork(rule=Remembering()), first.memory))
    assert first.extras["mark"].tolist() == [0]
    assert second.extras["mark"].tolist() == [1]
