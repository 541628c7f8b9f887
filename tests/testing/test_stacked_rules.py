"""The law of stacks: which rules it lets pass, and what it says of one that looks at all clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from offbeat.core.protocol import Gradient, LocalJob, LocalRule, LocalWork
from offbeat.core.strategies import FedAsync, FedBuff, FedCompass
from offbeat.testing import check
from offbeat.testing.laws import LAWS

STACKS = {"stacks": LAWS["stacks"]}


@dataclass(frozen=True)
class Clipped(LocalRule):
    """Clips the gradient to length 1: of each client, or of all of them as if they were one."""

    each: bool

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        length = torch.linalg.vector_norm(g, dim=-1, keepdim=True) if self.each else torch.linalg.vector_norm(g)
        return g / length.clamp(min=1.0), carry


@dataclass(frozen=True)
class Branching(LocalRule):
    stacks: ClassVar[bool] = False

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return (g if float(g.sum()) > 0 else g / 2), carry


@dataclass(frozen=True)
class Counting(LocalRule):
    """Keeps the mean gradient; its number of steps has no client dimension, so who is done counts on."""

    memory: ClassVar[tuple[str, ...]] = ("mean",)

    def begin(self, job: LocalJob) -> tuple[Tensor, int]:
        return torch.zeros_like(job.start), 0

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return g, (carry[0] + g, carry[1] + 1)

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {}, {"mean": carry[0] / carry[1]}


def finding(rule: LocalRule) -> Any:
    (found,) = check(FedBuff(k=2, work=LocalWork(rule=rule)), scripts=6, laws=STACKS)
    return found


def test_a_rule_that_reduces_over_the_last_dimension_keeps_it():
    assert finding(Clipped(each=True)).passed


def test_one_that_reduces_over_all_clients_does_not():
    found = finding(Clipped(each=False))
    assert not found.passed
    assert "another local model in a stack than alone" in found.message


def test_nor_one_whose_carry_does_not_freeze_with_its_client():
    found = finding(Counting())
    assert not found.passed
    assert "another memory['mean'] in a stack than alone" in found.message


def test_one_that_says_it_cannot_is_left_alone():
    assert finding(Branching()).passed


def test_work_of_different_lengths_is_stacked_too():
    for strategy in (FedCompass(q_min=1, q_max=4), FedAsync(rho=0.5)):
        (found,) = check(strategy, scripts=6, laws=STACKS)
        assert found.passed
