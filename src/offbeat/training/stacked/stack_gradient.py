"""How the gradient of one step of a stack is computed: what `Stack` hands its steps to.

Any model is mapped over the clients (`Mapped`): one vmapped forward pass and one backward pass of the summed losses.
Clients share nothing, so each row is that client's gradient. A chain of fully connected layers needs neither
(`ClosedForm`).
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
from offbeat.training.dropout import Masks
from offbeat.training.gradient import head, overrides
from offbeat.training.stacked.dense_chain import Chain
from offbeat.training.stacked.lstm import Series
from offbeat.training.stacked.stack_batches import Group
from offbeat.training.tasks import Task

Buffers = dict[str, Tensor]


class Kernel(Protocol):
    pads: bool  # may batches of different sizes be computed together?
    draws: bool  # does it need the noise of a step?

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Gradients are asked for within."""
        ...

    def gradient(self, points: Tensor, group: Group, keys: Tensor, moves: bool) -> Tensor:
        """Of the rows of that group at these points; `keys`: the noise of this step, of all rows; `moves`: batch
        statistics move along.
        """
        ...


class ClosedForm:
    """Of a chain. It has no state: any number of stacks may use it at once."""

    pads, draws = True, False

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    @contextmanager
    def serve(self) -> Iterator[None]:
        yield

    def gradient(self, points: Tensor, group: Group, keys: Tensor, moves: bool) -> Tensor:
        points = points if group.rows is None else points.index_select(0, group.rows)
        return self._chain.gradient(points, group.x, group.y, group.sizes)


class Mapped:
    """Of any module that can be mapped, for one stack. The module is used while it serves, and by nobody else."""

    draws = True
    pads = False  # neither BatchNorm nor a loss that takes a mean may see anything but a client's own examples

    def __init__(self, module: nn.Module, layout: Layout, task: Task, rule: LocalRule, job: LocalJob) -> None:
        self._module, self._layout, self._task = module, layout, task
        self._rule, self._job = rule, job
        self._own_loss = overrides(rule, "loss")
        self._masks, self._series = Masks(module), Series(module)
        self.buffers: Buffers = {}  # of each client
        self._seen: Tensor | None = None  # what entered the head
        self._after: Buffers = {}  # the module's buffers after a pass: it may have replaced them

    @contextmanager
    def serve(self) -> Iterator[None]:
        """What enters the head is kept for a rule that has a loss of its own, and what a pass leaves in the buffers."""

        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._seen = inputs[0] if inputs else None

        def leave(module: nn.Module, _: Any, outputs: Any) -> None:
            self._after = dict(module.named_buffers())

        self._module.train()
        hooks = [self._module.register_forward_hook(leave)]
        if self._own_loss:
            hooks.append(head(self._module, self._rule.head).register_forward_pre_hook(enter))
        try:
            with self._masks.serve(), self._series.serve():
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def gradient(self, points: Tensor, group: Group, keys: Tensor, moves: bool) -> Tensor:
        rows = torch.arange(len(points), device=points.device) if group.rows is None else group.rows
        leaf = points.index_select(0, rows).detach().requires_grad_()
        params = {s.name: leaf[:, s.start : s.stop].view(len(rows), *s.shape) for s in self._layout.of_kind("param")}
        buffers = {name: held.index_select(0, rows) for name, held in self.buffers.items()}
        losses, after = vmap(self._loss)(
            params, buffers, group.x, group.y, keys.index_select(0, rows), self._told(rows)
        )
        (grad,) = torch.autograd.grad(losses.sum(), leaf)
        if moves:
            for name, held in self.buffers.items():
                held.index_copy_(0, rows, after[name].detach().to(held.dtype))
        return grad

    def _told(self, rows: Tensor) -> dict[str, Any]:
        """What a loss of the rule's own may look at of each client's job."""
        if not self._own_loss:
            return {}
        job = self._job
        assert isinstance(job.lr, Tensor)
        given = {
            "base": job.base,
            "start": job.start,
            "lr": job.lr.squeeze(-1),
            "extras": dict(job.extras),
            "memory": dict(job.memory),
        }
        return {name: tree_map(lambda held: held.index_select(0, rows), held) for name, held in given.items()}

    def _loss(
        self, params: Buffers, buffers: Buffers, x: Tensor, y: Tensor, key: Tensor, given: dict[str, Any]
    ) -> tuple[Tensor, Buffers]:
        """Of one client, and its buffers afterwards: everything here is mapped over the stack."""
        self._masks.turn(key)
        outputs, own = functional_call(self._module, {**params, **buffers}, (x,)), None
        if self._own_loss:
            if self._seen is None:
                raise ProtocolError(
                    f"{type(self._rule).__name__} has a loss on features, but the model never called its head"
                )
            own = self._rule.loss(LocalJob(layout=self._layout, **given), outputs, self._seen, y)
        return (self._task.loss(outputs, y) if own is None else own), self._after
