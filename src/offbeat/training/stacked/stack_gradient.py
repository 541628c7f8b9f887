"""Compute the gradient of one step of a stack.

`VmapKernel` maps any model over the clients: one vmapped forward pass and one backward pass of the summed losses.
Clients share nothing, so each row is that client's gradient. `DenseKernel` has a closed form for dense layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from offbeat.core.errors import ProtocolError
from offbeat.core.protocol import Layout, LocalJob, LocalRule
from offbeat.training.gradient import find_head, overrides
from offbeat.training.regularization import DropoutMasks
from offbeat.training.stacked.dense_chain import DenseChain
from offbeat.training.stacked.lstm import StackedLstms
from offbeat.training.stacked.stack_batches import BatchGroup
from offbeat.training.tasks import Task

Buffers = dict[str, Tensor]


class GradientKernel(Protocol):
    pads: bool  # may batches of different sizes be computed together?
    draws: bool  # does it need the noise of a step?

    @contextmanager
    def install(self) -> Iterator[None]:
        """Prepare the module for gradients inside the context."""
        ...

    def gradient(self, points: Tensor, group: BatchGroup, keys: Tensor, moves: bool) -> Tensor:
        """Return a group's gradients at these points, with dropout keys; `moves` updates batch statistics."""
        ...


class DenseKernel:
    """The gradient of a dense chain; stateless, so several stacks may use it at once."""

    pads, draws = True, False

    def __init__(self, chain: DenseChain) -> None:
        self._chain = chain

    @contextmanager
    def install(self) -> Iterator[None]:
        yield

    def gradient(self, points: Tensor, group: BatchGroup, keys: Tensor, moves: bool) -> Tensor:
        points = points if group.rows is None else points.index_select(0, group.rows)
        return self._chain.gradient(points, group.x, group.y, group.sizes)


class VmapKernel:
    """The gradient of any module that supports vmap, for one stack at a time."""

    draws = True
    pads = False  # neither BatchNorm nor a loss that takes a mean may see anything but a client's own examples

    def __init__(self, module: nn.Module, layout: Layout, task: Task, rule: LocalRule, job: LocalJob) -> None:
        self._module, self._layout, self._task = module, layout, task
        self._rule, self._job = rule, job
        self._own_loss = overrides(rule, "loss")
        self._masks, self._series = DropoutMasks(module), StackedLstms(module)
        self.buffers: Buffers = {}  # of each client
        self._seen: Tensor | None = None  # what entered the head
        self._after: Buffers = {}  # the module's buffers after a pass: it may have replaced them

    @contextmanager
    def install(self) -> Iterator[None]:
        """Store the head's inputs for a rule with its own loss, and the buffers after each forward pass."""

        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._seen = inputs[0] if inputs else None

        def leave(module: nn.Module, _: Any, outputs: Any) -> None:
            self._after = dict(module.named_buffers())

        self._module.train()
        hooks = [self._module.register_forward_hook(leave)]
        if self._own_loss:
            hooks.append(find_head(self._module, self._rule.head).register_forward_pre_hook(enter))
        try:
            with self._masks.install(), self._series.install():
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def gradient(self, points: Tensor, group: BatchGroup, keys: Tensor, moves: bool) -> Tensor:
        rows = torch.arange(len(points), device=points.device) if group.rows is None else group.rows
        leaf = points.index_select(0, rows).detach().requires_grad_()
        params = {s.name: leaf[:, s.start : s.stop].view(len(rows), *s.shape) for s in self._layout.of_kind("param")}
        buffers = {name: buffer.index_select(0, rows) for name, buffer in self.buffers.items()}
        losses, after = vmap(self._loss)(
            params, buffers, group.x, group.y, keys.index_select(0, rows), self._rule_inputs(rows)
        )
        (grad,) = torch.autograd.grad(losses.sum(), leaf)
        if moves:
            for name, buffer in self.buffers.items():
                buffer.index_copy_(0, rows, after[name].detach().to(buffer.dtype))
        return grad

    def _rule_inputs(self, rows: Tensor) -> dict[str, Any]:
        """Return the fields of each client's job that a rule's own loss may read."""
        if not self._own_loss:
            return {}
        job = self._job
        assert isinstance(job.lr, Tensor)
        inputs = {
            "base": job.base,
            "start": job.start,
            "lr": job.lr.squeeze(-1),
            "extras": dict(job.extras),
            "memory": dict(job.memory),
        }
        return {name: tree_map(lambda buffer: buffer.index_select(0, rows), buffer) for name, buffer in inputs.items()}

    def _loss(
        self, params: Buffers, buffers: Buffers, x: Tensor, y: Tensor, key: Tensor, inputs: dict[str, Any]
    ) -> tuple[Tensor, Buffers]:
        """Return the loss and the buffers of one client; mapped over the stack."""
        self._masks.set_key(key)
        outputs, loss = functional_call(self._module, {**params, **buffers}, (x,)), None
        if self._own_loss:
            if self._seen is None:
                raise ProtocolError(
                    f"{type(self._rule).__name__} has a loss on features, but the model never called its head"
                )
            loss = self._rule.loss(LocalJob(layout=self._layout, **inputs), outputs, self._seen, y)
        return (self._task.loss(outputs, y) if loss is None else loss), self._after
