"""What a rule is asked once a job, before the first step and after the last, by whoever takes the steps of many jobs
together. What it draws there comes from the job's own key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from offbeat.core.jobs import PLAIN, Job, Result
from offbeat.core.protocol import LocalRule
from offbeat.training.gradient import overrides
from offbeat.training.plan import Plan
from offbeat.training.torch_generators import restore, seeded, states
from offbeat.training.trainer import Trainer

T = TypeVar("T")


def is_asked(rule: LocalRule | None) -> bool:
    return rule is not None and (overrides(rule, "begin") or overrides(rule, "end"))


def attempted(work: Callable[..., T], *given: Any) -> T | Exception:
    """What comes of it, or how it failed."""
    try:
        return work(*given)
    except (MemoryError, torch.OutOfMemoryError):
        raise  # the machine's trouble, not this client's
    except Exception as error:
        return error


class Asked:
    """One job: its rule was asked at the beginning when this is made."""

    def __init__(
        self, trainer: Trainer, sent: Job, sources: Sequence[torch.Generator], plan: Plan | None = None
    ) -> None:
        self.plan = trainer.plan(trainer.own(sent)) if plan is None else plan
        self.local = trainer.local_job(sent, self.plan.job, self.plan)
        self._rule, self._sources = sent.work.rule or PLAIN, sources
        self._drawn: list[Tensor] = []  # where its draws are then
        if not overrides(self._rule, "begin"):
            self.carry: Any = self._rule.begin(self.local)
            return
        with seeded(sources, self.plan.noise):
            self.carry = self._rule.begin(self.local)
            self._drawn = states(sources)

    def result(self, local: Tensor, carry: Any) -> Result:
        """Of steps that ended there, with that carry."""
        extras, memory = self._end(local, carry)
        return Result(self.plan.job.ticket, local, self.plan.job.num_examples, self.plan.steps, extras, memory)

    def _end(self, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """The extras to upload, and the new memory."""
        if not overrides(self._rule, "end"):
            return self._rule.end(self.local, local, carry)
        with seeded(self._sources, self.plan.noise):
            if self._drawn:
                restore(self._sources, self._drawn)
            return self._rule.end(self.local, local, carry)
