"""Take a training step of a stack of clients, as a function of tensors that can be traced.

The gradient of a client is the gradient of its loss, mapped over the clients with vmap. The client rule computes the
directions of all clients, the optimizer moves their weights, and finished clients stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from offbeat.core.draws import step_keys
from offbeat.core.errors import ProtocolError
from offbeat.core.local_rules import RuleCarry
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.training.descent import movable_entries, take_step
from offbeat.training.dropout import DropoutMasks
from offbeat.training.forward_functions import StackFunctions
from offbeat.training.gradient import find_head, overrides, same_memory
from offbeat.training.stacked.recurrent import unrolled
from offbeat.training.tasks import example_losses
from offbeat.training.trainer import Trainer

Tensors = dict[str, Tensor]
Fields = dict[str, Any]  # the fields of a job without its layout


@dataclass
class StackState:
    """The values that a step changes; all tensors have a leading client dimension."""

    w: Tensor
    moments: list[Tensor]  # of the optimizer
    buffers: Tensors  # of the module, by name
    carry: RuleCarry  # of the rule


@dataclass
class StackInputs:
    """The values that a step reads."""

    job: LocalJob
    lr: Tensor  # (clients, 1)
    noise: Tensor  # (clients,): seeds of dropout
    frozen: Tensors  # parameters that no client trains, without a client dimension
    done: Tensor  # (): steps of this job before this one
    number: Tensor  # (): number of this step in its phase, from 1
    x: Tensor  # (clients, examples, …)
    y: Tensor
    sizes: Tensor  # (clients,): examples that count; 0 for finished clients


class TrainingStep:
    """`step(state, inputs)` returns the next state for the jobs of one rule and phase.

    With `masked`, batches contain padding: the first `sizes[i]` examples of client i count.
    """

    def __init__(self, trainer: Trainer, rule: LocalRule, slices: tuple[str, ...] | None, masked: bool) -> None:
        self._module, self._layout, self._task = trainer.binding.module, trainer.binding.layout, trainer.task
        self._training, self._rule, self._slices = trainer.training, rule, slices
        self._own_loss = overrides(rule, "loss")
        self._masks = DropoutMasks(self._module)
        self._functions = StackFunctions(self._masks)
        self._losses = example_losses(self._task) if masked else None
        self._masked = masked
        self._features: Tensor | None = None
        self._buffers_after: Tensors = {}

    def __call__(self, state: StackState, inputs: StackInputs) -> StackState:
        """Take one step with all clients."""
        buffers, active = state.buffers, (inputs.sizes > 0)[:, None]
        moved: list[Tensors] = []
        keys = step_keys(inputs.noise, inputs.done)

        def gradient(point: Tensor) -> Tensor:
            """Return the gradients of all clients at a point."""
            direction, after = self.gradient(point, buffers, inputs, keys)
            if not moved and same_memory(point, w):
                moved.append(after)  # statistics follow the first evaluation at w
            return direction

        w = state.w.clone()
        optimizer = self._training.make_optimizer()
        optimizer.resume([moment.clone() for moment in state.moments], inputs.number - 1)
        movable = None if self._slices is None else movable_entries(inputs.job, self._slices)
        carry = take_step(self._rule, inputs.job, movable, inputs.lr, w, gradient, optimizer, state.carry, active)
        after = moved[0] if moved else buffers
        statistics = {
            name: torch.where(active.view(-1, *(1,) * (value.dim() - 1)), after[name].to(value.dtype), value)
            for name, value in buffers.items()
        }
        return StackState(w, optimizer.moments, statistics, carry)

    def gradient(self, points: Tensor, buffers: Tensors, inputs: StackInputs, keys: Tensor) -> tuple[Tensor, Tensors]:
        """Return each client's gradient at its point, and the module's buffers after the forward pass."""
        fields = self._job_fields(inputs) if self._own_loss else {}
        with self._installed():
            gradients: tuple[Tensor, Tensors] = vmap(grad(partial(self._loss, inputs.frozen), has_aux=True))(
                points, buffers, inputs.x, inputs.y, inputs.sizes, keys, fields
            )
            return gradients

    def _loss(
        self,
        frozen: Tensors,
        point: Tensor,
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        size: Tensor,
        key: Tensor,
        job: Fields,
    ) -> tuple[Tensor, Tensors]:
        """Return the loss of one client and its buffers afterwards."""
        params = {s.name: point[s.start : s.stop].view(s.shape) for s in self._layout.of_kind("param")}
        self._masks.set_key(key)
        counts = torch.arange(len(x), device=x.device) < size if self._masked else None
        self._functions.counts, self._features = counts, None
        own_buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        with self._functions:
            outputs = functional_call(self._module, {**frozen, **params, **own_buffers}, (x,))
            if self._own_loss:
                return self._rule_loss(job, outputs, y), self._buffers_after
            if counts is None or self._losses is None:
                return self._task.loss(outputs, y), self._buffers_after
            each = torch.where(counts, self._losses(outputs, y), 0.0)
            return each.sum() / size, self._buffers_after

    def _rule_loss(self, job: Fields, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the rule's loss of one client, or that of the task if the rule returns None."""
        if self._features is None:
            name = type(self._rule).__name__
            raise ProtocolError(f"{name} has a loss on features, but the model never called its head")
        loss = self._rule.loss(LocalJob(layout=self._layout, **job), outputs, self._features, y)
        return self._task.loss(outputs, y) if loss is None else loss

    def _job_fields(self, inputs: StackInputs) -> Fields:
        """Return the fields of each client's job that a rule's own loss may read."""
        job = inputs.job
        lr = inputs.lr.squeeze(-1)
        return {"base": job.base, "start": job.start, "lr": lr, "extras": dict(job.extras), "memory": dict(job.memory)}

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Make the module use the masks and unrolled recurrent layers, and record its features and buffers."""

        def store_features(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            """Store the input of the head."""
            self._features = inputs[0] if inputs else None

        def store_buffers(module: nn.Module, _: object, outputs: object) -> None:
            """Store the buffers after a forward pass, because a module may replace them."""
            self._buffers_after = dict(module.named_buffers())

        with ExitStack() as context:
            context.enter_context(self._masks.install())
            context.enter_context(unrolled(self._module))
            context.callback(self._module.register_forward_hook(store_buffers).remove)
            if self._own_loss:
                head = find_head(self._module, self._rule.head)
                context.callback(head.register_forward_pre_hook(store_features).remove)
            yield
