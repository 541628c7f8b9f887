"""The gradient of one batch as a function of the point, which rules call at each step.

Parameters are views into one flat vector w. The first evaluation at w runs the module directly and updates its batch
statistics. Every other evaluation restores w and the statistics afterwards. All evaluations of a batch use the same
dropout masks, so gradients at two points differ only by the point. Chains of fully connected layers have a closed form.

Some layers draw from PyTorch's global generators. They are seeded from the job's key and restored afterwards, so no job
depends on another. Other threads wait meanwhile: two threads would draw each other's numbers, and torch can deadlock if
two threads ask for the state of a generator.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from offbeat.core.errors import ProtocolError, unknown_name
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.core.vector import Binding
from offbeat.training.dense_chain import DenseChain
from offbeat.training.dropout import DropoutMasks
from offbeat.training.forward_functions import ForwardFunctions, may_call_functions
from offbeat.training.tasks import Task, loss_function


def overrides(rule: LocalRule, name: str) -> bool:
    """Return whether the rule overrides this method."""
    return getattr(type(rule), name, None) is not getattr(LocalRule, name)


class Gradients:
    """The gradients of one bound module; `use_rule` sets the rule and the job they are for."""

    def __init__(self, binding: Binding, task: Task, chain: DenseChain | None) -> None:
        self.w = binding.w
        self.sources = device_generators(binding.vector.device)
        self.masks = DropoutMasks(binding.module)
        self.repeats_draws = False
        self._module = binding.module
        self._params = binding.params
        self._task_loss = loss_function(task)
        self._chain = chain
        if chain is not None:
            self._grad = torch.empty_like(self.w)[None]
            self._views, self._grad_views = chain.views(self.w[None]), chain.views(self._grad)
        self._functions = ForwardFunctions(self.masks) if may_call_functions(binding.module) else None
        self._has_dropout = bool(self.masks)
        self.needs_keys = self._has_dropout or self._functions is not None  # of dropout
        self._rule: LocalRule | None = None  # set only if the rule has its own loss
        self._job: LocalJob | None = None
        self._features: Tensor | None = None

    @contextmanager
    def use_rule(self, rule: LocalRule, job: LocalJob) -> Iterator[None]:
        """Prepare the gradients for the steps of this job."""
        # only a rule with its own direction() can evaluate a batch more than once
        self.repeats_draws = overrides(rule, "direction")
        with self.masks.install() if self._has_dropout else nullcontext():
            yield from self._use_rule_loss(rule, job)

    def _use_rule_loss(self, rule: LocalRule, job: LocalJob) -> Iterator[None]:
        """Record the features of the model if the rule has its own loss."""
        if not overrides(rule, "loss"):
            yield
            return
        self._rule, self._job = rule, job
        hook = find_head(self._module, rule.head).register_forward_pre_hook(self._store_features)
        try:
            yield
        finally:
            hook.remove()
            self._rule = self._job = self._features = None

    def at_weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient at w and update the batch statistics."""
        if self._chain is not None and self._rule is None:
            self._chain.write_gradient(self._views, self._grad_views, x[None], y[None])
            return self._grad[0].clone()  # the rule may keep it
        return self._by_autograd(x, y)

    def _by_autograd(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient at w by autograd."""
        with nullcontext() if self._functions is None else self._functions:
            outputs = self._module(x)
            loss = self._task_loss(outputs, y) if self._rule is None else self._rule_loss(outputs, y)
            grads = torch.autograd.grad(loss, self._params, allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in grads])

    def at_point(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient at any point without changing w or the batch statistics."""
        if point.shape != self.w.shape:
            raise ProtocolError(
                f"a rule asked for the gradient at shape {tuple(point.shape)}; w has {tuple(self.w.shape)}"
            )
        if self._chain is not None and self._rule is None:
            return self._chain.gradient(point[None], x[None], y[None])[0]
        with preserved_state(self._module, self.w):
            self.w.copy_(point)
            return self.at_weights(x, y)

    def _rule_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of the rule, or that of the task if the rule returns None."""
        assert self._rule is not None
        assert self._job is not None
        if self._features is None:
            raise ProtocolError(
                f"{type(self._rule).__name__} has a loss on features, but the model never called its head"
            )
        loss = self._rule.loss(self._job, outputs, self._features, y)
        return self._task_loss(outputs, y) if loss is None else loss

    def _store_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Store the input of the head; this is a forward pre-hook."""
        self._features = inputs[0] if inputs else None


class BatchGradient:
    """The function `grad(point)` for one batch, which rules get in `direction()`."""

    __slots__ = ("_first", "_key", "_owner", "_states", "_x", "_y")

    def __init__(self, owner: Gradients, x: Tensor, y: Tensor, key: Tensor | None) -> None:
        self._owner = owner
        self._key = key  # the dropout key of this step, if the model has dropout
        self._x = x
        self._y = y
        self._first = True
        self._states: list[Tensor] | None = None

    def __call__(self, point: Tensor) -> Tensor:
        """Return the gradient of the batch at a point."""
        owner = self._owner
        if self._key is not None:
            owner.masks.set_key(self._key)
        if owner.repeats_draws:
            if self._states is None:
                self._states = get_states(owner.sources)
            else:
                set_states(owner.sources, self._states)
        if self._first and (point is owner.w or same_memory(point, owner.w)):
            self._first = False
            return owner.at_weights(self._x, self._y)
        return owner.at_point(point, self._x, self._y)


@contextmanager
def preserved_state(module: nn.Module, w: Tensor) -> Iterator[None]:
    """Restore w and the module's buffers at the end of the context."""
    saved = w.clone()
    statistics = [(m, name, b, b.clone()) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    try:
        yield
    finally:
        w.copy_(saved)
        for m, name, b, value in statistics:
            m._buffers[name] = b  # a module may have replaced the tensor
            b.copy_(value)


def find_head(module: nn.Module, name: str | None = None) -> nn.Module:
    """Return the module of this name; without a name, the last module that has its own parameters."""
    if name is not None:
        known: dict[str, nn.Module] = dict(module.named_modules())
        if name not in known:
            raise unknown_name("module", name, filter(None, known))
        return known[name]
    return [m for m in module.modules() if any(p is not None for p in m._parameters.values())][-1]


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape


# ---------------------------------------------------------------- global random generators


_lock = threading.RLock()


@contextmanager
def exclusive_generators() -> Iterator[None]:
    """Give the current thread exclusive use of the global generators."""
    with _lock:
        yield


def _renew_lock() -> None:
    """Replace the lock in a forked process, in which the thread that held it does not exist."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def device_generators(device: torch.device) -> list[torch.Generator]:
    """Return the global generators that layers on this device draw from."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators


def get_states(generators: Sequence[torch.Generator]) -> list[Tensor]:
    """Return the state of each generator."""
    return [g.get_state() for g in generators]


def set_states(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    """Set the state of each generator."""
    for g, state in zip(generators, states, strict=True):
        g.set_state(state)


@contextmanager
def seeded(generators: Sequence[torch.Generator], seed: int) -> Iterator[None]:
    """Seed the generators inside the context and restore them afterwards."""
    if len(generators) > 1 and torch.cuda.is_current_stream_capturing():
        yield  # generators cannot be set during the capture of a graph, which draws no random numbers
        return
    with exclusive_generators():
        # torch.manual_seed would also reseed all other devices
        states = get_states(generators)
        for g in generators:
            g.manual_seed(seed)
        try:
            yield
        finally:
            set_states(generators, states)
