"""Train stacks of dense chains with closed-form gradients, without autograd and tracing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from offbeat.core.errors import ProtocolError
from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import Gradient, LocalRule
from offbeat.training.descent import run_phase
from offbeat.training.gradient import device_generators, get_states, overrides, seeded
from offbeat.training.rule_hooks import rule_key
from offbeat.training.stacked.job_stack import Batch, JobStack, StackBatches
from offbeat.training.trainer import Trainer

CACHE_BYTES = 2**21  # bytes of examples that stay in a core's cache: larger stacks are slower


class DenseKernel:
    """Train stacks of fully connected layers with cross entropy, squared error or binary cross entropy."""

    name = "dense"

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._failures: dict[Hashable, str] = {}  # rule -> reason
        batch_bytes = trainer.binding.vector.element_size() * trainer.training.batch * trainer.data.input_size
        self._cached_jobs = max(8, CACHE_BYTES // batch_bytes)  # clients whose batches fit into a core's cache

    def why_not(self, rule: LocalRule) -> str | None:
        """Return why this kernel cannot train jobs of this rule, or None."""
        if self._trainer.chain is None:
            return "the model is not a chain of fully connected layers with a standard loss"
        if overrides(rule, "loss"):
            return f"{type(rule).__name__} has its own loss"
        return f"{type(rule).__name__} sets stacks = False" if not rule.stacks else self._failures.get(rule_key(rule))

    def refuse(self, rule: LocalRule, reason: str) -> None:
        """Do not try jobs of this rule again."""
        self._failures[rule_key(rule)] = reason

    def close(self) -> None:
        """Release nothing: this kernel keeps no memory."""

    def stacks(self, jobs: Sequence[Job], limit: int) -> list[list[Job]]:
        """Split jobs of one rule into stacks with similar numbers of steps."""
        size = min(limit, self._cached_jobs)
        ordered = sorted(jobs, key=self._trainer.total_steps, reverse=True)
        return [ordered[first : first + size] for first in range(0, len(ordered), size)]

    def train(self, jobs: Sequence[Job]) -> list[Result]:
        """Train jobs of one rule together."""
        trainer = self._trainer
        if trains_plainly(trainer, jobs):
            return self._train_plainly(jobs)
        sources = device_generators(trainer.data.device)
        with seeded(sources, 0):
            before = get_states(sources)
            results = self._train_by_rule(jobs)
            if not all(map(torch.equal, before, get_states(sources))):
                raise ProtocolError(f"{jobs[0].work.rule!r} draws random numbers at every step")
        return results

    def _train_by_rule(self, jobs: Sequence[Job]) -> list[Result]:
        """Train with the directions of the rule and any optimizer."""
        trainer, chain = self._trainer, self._trainer.chain
        assert chain is not None
        stack = JobStack(trainer, jobs)
        vectors = stack.job.base.clone()
        w = trainer.binding.layout.trainable(vectors)  # a view: params come first

        def gradient(batch: Batch) -> Gradient:
            """Return the gradient of a batch as a function of the points."""
            sizes = batch.sizes if batch.padded or batch.finished else None
            return lambda points: chain.gradient(points, batch.x, batch.y, sizes)

        for number, phase in enumerate(stack.plans[0].phases):
            steps = (
                (gradient(batch), (batch.sizes > 0)[:, None] if batch.finished else None)
                for batch in stack.batches(number).steps(lambda _: len(jobs))
            )
            optimizer, lr = trainer.training.make_optimizer(), stack.learning_rates(number)
            _, stack.carry = run_phase(stack.rule, stack.job, phase, lr, w, steps, optimizer, stack.carry)
        return stack.results(vectors)

    def _train_plainly(self, jobs: Sequence[Job]) -> list[Result]:
        """Train with plain SGD, which needs no gradient vector."""
        trainer, chain = self._trainer, self._trainer.chain
        assert chain is not None
        plans = [trainer.make_plan(trainer.prepare_job(job)) for job in jobs]
        w = torch.stack([job.base for job in jobs])
        rates = torch.tensor([plan.learning_rate(0) for plan in plans], dtype=w.dtype, device=w.device)[:, None, None]
        views = chain.views(w)
        for batch in StackBatches(trainer.data, plans, 0).steps():
            clients, width = batch.x.shape[:2]
            if len(views[0][0]) != clients:
                views = chain.views(w[:clients])
            step_rates = rates[:clients] if batch.padded else rates[:clients] / width
            chain.descend(views, batch.x, batch.y, batch.sizes if batch.padded else None, step_rates)
        return [
            Result(job.ticket, row.clone(), job.num_examples, plan.steps)
            for job, plan, row in zip(jobs, plans, w, strict=True)
        ]


def trains_plainly(trainer: Trainer, jobs: Sequence[Job]) -> bool:
    """Return whether the jobs are plain SGD without a rule."""
    training = trainer.training
    plain = training.optimizer == "sgd" and not (training.momentum or training.weight_decay)
    return plain and training.augment is None and training.bn == "shared" and jobs[0].work.rule in (None, PLAIN_RULE)
