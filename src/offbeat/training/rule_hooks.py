"""Call a rule's `begin()` and `end()` once per job when jobs are trained as a stack.

Random numbers that a rule draws there come from the job's own key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import PLAIN_RULE, RuleCarry
from offbeat.core.protocol import LocalRule
from offbeat.training.descent import Plan
from offbeat.training.gradient import get_states, overrides, seeded, set_states
from offbeat.training.trainer import Trainer

T = TypeVar("T")


def has_hooks(rule: LocalRule | None) -> bool:
    """Return whether a rule has its own `begin()` or `end()`."""
    return rule is not None and (overrides(rule, "begin") or overrides(rule, "end"))


def try_call(work: Callable[..., T], *arguments: object) -> T | Exception:
    """Return the result of a call, or the exception it raised; lack of memory is raised."""
    try:
        return work(*arguments)
    except (MemoryError, torch.OutOfMemoryError):
        raise  # a problem of this machine, not of the client's job
    except Exception as error:
        return error


def rule_key(rule: LocalRule | None) -> Hashable:
    """Return a key that is equal for equal rules; unhashable rules equal only themselves."""
    return hashable_key(rule)


def hashable_key(value: object) -> Hashable:
    """Return the value, or an object that is equal only for the same value if it cannot be hashed."""
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return value


class _Identity:
    """A value that is compared by identity; it stays alive, so its identity is not used again."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


class RuleHooks:
    """The hooks of one job's rule; `begin()` is called on creation."""

    def __init__(
        self, trainer: Trainer, sent: Job, sources: Sequence[torch.Generator], plan: Plan | None = None
    ) -> None:
        self.plan = trainer.make_plan(trainer.prepare_job(sent)) if plan is None else plan
        self.local_job = trainer.make_local_job(sent, self.plan.job, self.plan)
        self._rule, self._sources = sent.work.rule or PLAIN_RULE, sources
        self._drawn: list[Tensor] = []  # states of the generators after begin()
        if not overrides(self._rule, "begin"):
            self.carry: RuleCarry = self._rule.begin(self.local_job)
            return
        with seeded(sources, self.plan.noise_seed):
            self.carry = self._rule.begin(self.local_job)
            self._drawn = get_states(sources)

    def result(self, local: Tensor, carry: RuleCarry) -> Result:
        """Call `end()` and return the result of the job, whose steps ended at `local` with this carry."""
        extras, memory = self._end(local, carry)
        return Result(self.plan.job.ticket, local, self.plan.job.num_examples, self.plan.steps, extras, memory)

    def _end(self, local: Tensor, carry: RuleCarry) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Call `end()` with the generators in the state that `begin()` left."""
        if not overrides(self._rule, "end"):
            return self._rule.end(self.local_job, local, carry)
        with seeded(self._sources, self.plan.noise_seed):
            if self._drawn:
                set_states(self._sources, self._drawn)
            return self._rule.end(self.local_job, local, carry)
