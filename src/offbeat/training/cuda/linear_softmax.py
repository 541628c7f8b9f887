"""Train stacks of one linear layer with cross entropy by plain SGD or proximal SGD.

All steps are known in advance. Input transforms are applied once, not at every step. On a GPU all steps are one kernel
(`training/cuda/linear_softmax_triton.py`); elsewhere they are called one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalRule
from offbeat.training.client_data import ExampleIndex, transform_inputs
from offbeat.training.dense_chain import DenseChain, DenseLayer, cross_entropy_error
from offbeat.training.gradient import overrides
from offbeat.training.rule_hooks import RuleHooks, has_hooks, try_call
from offbeat.training.stacked.batch_order import BatchOrder, draw_batch_order
from offbeat.training.stacked.convolution import has_kernels
from offbeat.training.trainer import Trainer

MAX_KERNEL_SIZE = 128  # examples in a batch, and classes, as kernels take them

Layer = tuple[int, int | None, int, int]  # where its weights and its biases begin in a vector, its outputs and inputs


@dataclass(frozen=True)
class LinearSoftmax:
    layer: Layer
    x: Tensor  # (examples, inputs), after the input transform
    y: Tensor

    @staticmethod
    def for_trainer(trainer: Trainer, pair: tuple[Tensor, Tensor]) -> LinearSoftmax | None:
        """Return None for other models and training settings."""
        device, binding = pair[0].device.type, trainer.binding
        chain = DenseChain.for_module(binding.module, binding.layout, trainer.task, trainer.data)
        layer = find_single_layer(trainer, chain)
        if layer is None or chain is None or trainer.training.batch > MAX_KERNEL_SIZE:
            return None
        dtype = binding.w.dtype
        if device != "cpu" and not (has_kernels(device) and dtype == torch.float32 and layer[2] <= MAX_KERNEL_SIZE):
            return None
        x = pair[0] if chain.transform is None else transform_inputs(chain.transform, pair[0])
        return LinearSoftmax(layer, x.reshape(len(x), -1).contiguous(), pair[1].contiguous())

    def train_many(
        self,
        jobs: Sequence[Job],
        works: Sequence[tuple[Trainer, Sequence[Job]]],  # the same jobs, by whose they are and what is asked of them
        placed: Sequence[ExampleIndex],
        sources: Sequence[torch.Generator],
    ) -> list[Result | Exception]:
        """Train jobs whose rules do not change the steps.

        begin() and end() are called per job; a failure affects only that job.
        """
        first = works[0][0]
        if len(works) == 1:
            paces = first.rates_and_steps(jobs)
        else:
            schedules = {
                job.ticket: pace
                for trainer, some in works
                for job, pace in zip(some, trainer.rates_and_steps(some), strict=True)
            }
            paces = [schedules[job.ticket] for job in jobs]
        rates, taken = zip(*paces, strict=True)
        mus = {id(some[0].work): pull_strength(some[0].work.rule) for _, some in works}
        pulls = [mus[id(job.work)] for job in jobs] if any(mus.values()) else None
        hooks = {
            job.ticket: try_call(RuleHooks, trainer, job, sources)
            for trainer, some in works
            if has_hooks(some[0].work.rule)
            for job in some
        }
        orders = draw_batch_order(jobs, taken, placed, first.training.batch, merge=False)
        ends = self.train([job.base for job in jobs], rates, orders, pulls)
        answers: list[Result | Exception] = [
            Result(job.ticket, end, job.num_examples, steps, {}, {})
            for job, end, steps in zip(jobs, ends, taken, strict=True)
        ]
        for i, job in enumerate(jobs) if hooks else ():
            job_hooks = hooks.get(job.ticket)
            if job_hooks is not None:
                answers[i] = (
                    job_hooks
                    if isinstance(job_hooks, Exception)
                    else try_call(job_hooks.result, ends[i], job_hooks.carry)
                )
        return answers

    def train(
        self, bases: Sequence[Tensor], rates: Sequence[float], orders: BatchOrder, pulls: Sequence[float] | None = None
    ) -> list[Tensor]:
        """Return the final vector of each client, trained from its base with its own rate and pull."""
        if not bases[0].is_cuda:
            w = torch.stack(list(bases))
            pull_column = None if pulls is None else torch.tensor(pulls, dtype=w.dtype)
            descend(w, self.layer, self.x, self.y, orders, torch.tensor(rates, dtype=w.dtype), pull_column)
            return copy_vectors(w.unbind(0))
        from offbeat.training.cuda import linear_softmax_triton

        outputs, inputs = self.layer[2:]
        length = outputs * inputs + (outputs if self.layer[1] is not None else 0)
        lying = {key: contiguous_base(base, self.x, length) for key, base in {id(base): base for base in bases}.items()}
        begins = [lying[id(base)] for base in bases]
        return linear_softmax_triton.train_jobs(begins, self.layer, self.x, self.y, orders, rates, pulls)


def is_sgd_with_pull(rule: LocalRule) -> bool:
    """Return whether the rule's steps are plain SGD, possibly with a pull to the base."""
    has_direction = overrides(rule, "direction") and type(rule) is not Proximal
    return not (has_direction or overrides(rule, "loss") or overrides(rule, "phases"))


def pull_strength(rule: LocalRule | None) -> float:
    """Return the strength of the pull to the base, the rule's mu."""
    return float(rule.mu) if type(rule) is Proximal else 0.0


def find_single_layer(trainer: Trainer, chain: DenseChain | None) -> Layer | None:
    """Return the layer of a model with a single layer that trains with plain SGD, else None."""
    training = trainer.training
    if training.optimizer != "sgd" or training.momentum or training.weight_decay or training.augment is not None:
        return None
    if training.bn != "shared":
        return None  # clients hand statistics back, be there any or not
    if chain is None or len(chain.links) != 1 or chain.error is not cross_entropy_error:
        return None
    dense = chain.links[0]
    assert isinstance(dense, DenseLayer)
    outputs, inputs = dense.weight.shape
    return dense.weight.start, None if dense.bias is None else dense.bias.start, outputs, inputs


def contiguous_base(base: Tensor, like: Tensor, length: int) -> Tensor:
    """Return the base, or a contiguous copy; kernels read memory by address without checking its layout."""
    if base.shape != (length,) or base.dtype != like.dtype or base.device != like.device:
        raise ValueError(
            f"a base of {tuple(base.shape)}, {base.dtype} on {base.device}, where models are of {length} entries and "
            f"examples of {like.dtype} on {like.device}"
        )
    plain = base.contiguous().resolve_neg()
    return plain if plain.data_ptr() % 16 == 0 else plain.clone()


def copy_vectors(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Copy each vector in one call; views would keep the whole stack alive.

    The multiplication by one does not change any bits.
    """
    return list(torch._foreach_mul(list(vectors), 1.0))


def descend(
    w: Tensor, layer: Layer, x: Tensor, y: Tensor, orders: BatchOrder, rates: Tensor, pulls: Tensor | None = None
) -> None:
    """Take all steps of each client."""
    start, bias, outputs, inputs = layer
    clients, width = len(w), orders.batch
    begin = w.clone() if pulls is not None else w
    weight = w[:, start : start + outputs * inputs].view(clients, outputs, inputs)
    for step in range(orders.most):
        batch = orders.batch_rows(step, 1, width)
        chosen, size = batch.rows[0], batch.sizes[0]
        shown = x.index_select(0, chosen.reshape(-1)).view(clients, width, inputs)
        out = torch.bmm(shown, weight.transpose(1, 2))
        if bias is not None:
            out += w[:, None, bias : bias + outputs]
        p = torch.softmax(out, 2)
        p.scatter_add_(2, y.index_select(0, chosen.reshape(-1)).view(clients, width, 1), -torch.ones_like(p[:, :, :1]))
        counts = torch.arange(width, device=w.device) < size[:, None]
        g = torch.where(counts[:, :, None], p * (rates / size.clamp(min=1))[:, None, None], 0.0)
        if pulls is not None:  # w - rate (gradient + mu (w - begin)), for who takes this step
            back = (rates * pulls)[:, None]
            w -= torch.where((size > 0)[:, None] & (back != 0), back * (w - begin), 0.0)
        weight -= torch.bmm(g.transpose(1, 2), shown)
        if bias is not None:
            w[:, bias : bias + outputs] -= g.sum(1)
