"""The straight way of a stack on a device: one fully connected layer under cross entropy, descended plainly, or with a
pull back to where it began.

Nothing has to be recorded, since every step of it is known beforehand. Examples pass the model's door once, not at
every step. On a GPU all steps are one kernel (`training/cuda/linear_softmax_triton.py`); elsewhere they are called one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.parts.proximal import Proximal
from offbeat.core.protocol import LocalRule
from offbeat.training.client_data import Placed, passed
from offbeat.training.gradient import overrides
from offbeat.training.rule_hooks import Asked, attempted, is_asked
from offbeat.training.stacked.batch_order import Orders, orders_of
from offbeat.training.stacked.convolution import has_kernels
from offbeat.training.stacked.dense_chain import Chain, Dense, classes
from offbeat.training.trainer import Trainer

MOST = 128  # examples in a batch, and classes, as kernels take them

Layer = tuple[int, int | None, int, int]  # where its weights and its biases begin in a vector, its outputs and inputs


@dataclass(frozen=True)
class Straight:
    layer: Layer
    x: Tensor  # (examples, inputs), beyond the door
    y: Tensor

    @staticmethod
    def of(trainer: Trainer, pair: tuple[Tensor, Tensor]) -> Straight | None:
        """None for any other model or training."""
        device, binding = pair[0].device.type, trainer.binding
        chain = Chain.of(binding.module, binding.layout, trainer.task, trainer.data)
        layer = one_layer(trainer, chain)
        if layer is None or chain is None or trainer.training.batch > MOST:
            return None
        dtype = binding.w.dtype
        if device != "cpu" and not (has_kernels(device) and dtype == torch.float32 and layer[2] <= MOST):
            return None
        x = pair[0] if chain.door is None else passed(chain.door, pair[0])
        return Straight(layer, x.reshape(len(x), -1).contiguous(), pair[1].contiguous())

    def answers(
        self,
        jobs: Sequence[Job],
        works: Sequence[tuple[Trainer, Sequence[Job]]],  # the same jobs, by whose they are and what is asked of them
        placed: Sequence[Placed],
        sources: Sequence[torch.Generator],
    ) -> list[Result | Exception]:
        """Of jobs whose rules leave the steps as they are. What a rule is asked once a job it is asked job by job, and
        where it fails it fails alone.
        """
        first = works[0][0]
        if len(works) == 1:
            paces = first.paces(jobs)
        else:
            found = {
                job.ticket: pace for trainer, some in works for job, pace in zip(some, trainer.paces(some), strict=True)
            }
            paces = [found[job.ticket] for job in jobs]
        rates, taken = zip(*paces, strict=True)
        mus = {id(some[0].work): pull_of(some[0].work.rule) for _, some in works}
        pulls = [mus[id(job.work)] for job in jobs] if any(mus.values()) else None
        asked = {
            job.ticket: attempted(Asked, trainer, job, sources)
            for trainer, some in works
            if is_asked(some[0].work.rule)
            for job in some
        }
        orders = orders_of(jobs, taken, placed, len(jobs), first.training.batch, merge=False)
        ends = self.train([job.base for job in jobs], rates, orders, pulls)
        answers: list[Result | Exception] = [
            Result(job.ticket, end, job.num_examples, steps, {}, {})
            for job, end, steps in zip(jobs, ends, taken, strict=True)
        ]
        for i, job in enumerate(jobs) if asked else ():
            one = asked.get(job.ticket)
            if one is not None:
                answers[i] = one if isinstance(one, Exception) else attempted(one.result, ends[i], one.carry)
        return answers

    def train(
        self, bases: Sequence[Tensor], rates: Sequence[float], orders: Orders, pulls: Sequence[float] | None = None
    ) -> list[Tensor]:
        """Where each client ends that begins at its base and goes on at its own rate, pulled back so strongly."""
        if not bases[0].is_cuda:
            w = torch.stack(list(bases))
            held = None if pulls is None else torch.tensor(pulls, dtype=w.dtype)
            descend(w, self.layer, self.x, self.y, orders, torch.tensor(rates, dtype=w.dtype), held)
            return copies(w.unbind(0))
        from offbeat.training.cuda import linear_softmax_triton

        outputs, inputs = self.layer[2:]
        length = outputs * inputs + (outputs if self.layer[1] is not None else 0)
        lying = {key: lying_plainly(base, self.x, length) for key, base in {id(base): base for base in bases}.items()}
        begins = [lying[id(base)] for base in bases]
        return linear_softmax_triton.descended(begins, self.layer, self.x, self.y, orders, rates, pulls)


def descends_plainly(rule: LocalRule) -> bool:
    """Is such a client's descent plain, but for a pull back to where it began? `begin` and `end` are the rule's."""
    own = overrides(rule, "direction") and type(rule) is not Proximal
    return not (own or overrides(rule, "loss") or overrides(rule, "phases"))


def pull_of(rule: LocalRule | None) -> float:
    """How strongly such a client is pulled back: its mu."""
    return float(rule.mu) if type(rule) is Proximal else 0.0


def one_layer(trainer: Trainer, chain: Chain | None) -> Layer | None:
    """The layer, of a model that is no more than one, in a training that is descent by the gradient alone."""
    training = trainer.training
    if training.optimizer != "sgd" or training.momentum or training.weight_decay or training.augment is not None:
        return None
    if training.bn != "shared":
        return None  # clients hand statistics back, be there any or not
    if chain is None or len(chain.links) != 1 or chain.error is not classes:
        return None
    dense = chain.links[0]
    assert isinstance(dense, Dense)
    outputs, inputs = dense.weight.shape
    return dense.weight.start, None if dense.bias is None else dense.bias.start, outputs, inputs


def lying_plainly(base: Tensor, like: Tensor, length: int) -> Tensor:
    """Itself, or a copy where it does not lie as tensors do. Whatever else is wrong with it, a loop or a kernel that is
    told an address would not notice.
    """
    if base.shape != (length,) or base.dtype != like.dtype or base.device != like.device:
        raise ValueError(
            f"a base of {tuple(base.shape)}, {base.dtype} on {base.device}, where models are of {length} entries and "
            f"examples of {like.dtype} on {like.device}"
        )
    plain = base.contiguous().resolve_neg()
    return plain if plain.data_ptr() % 16 == 0 else plain.clone()


def copies(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Each a tensor of its own (a view of a stack would keep all of it alive), in one call: times one is the same
    bits.
    """
    return list(torch._foreach_mul(list(vectors), 1.0))


def descend(
    w: Tensor, layer: Layer, x: Tensor, y: Tensor, orders: Orders, rates: Tensor, pulls: Tensor | None = None
) -> None:
    """All steps of each client."""
    start, bias, outputs, inputs = layer
    clients, width = len(w), orders.batch
    begin = w.clone() if pulls is not None else w
    weight = w[:, start : start + outputs * inputs].view(clients, outputs, inputs)
    for step in range(orders.most):
        chosen, size = (of[0] for of in orders.at(step, 1, width))
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
