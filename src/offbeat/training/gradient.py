"""The gradient of one batch as a function of the point: what a rule is handed at each step.

Parameters are views into one flat vector w. The step's own evaluation, the first at w, runs the module as it stands
and moves its batch statistics. Every other evaluation borrows w, then puts w and the statistics back. All evaluations
of a batch see the same dropout masks: otherwise gradients at two points would differ by the masks as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import ProtocolError, unknown
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.core.vector import Binding
from offbeat.training.dense_gradient import Tape, watched
from offbeat.training.dropout import Masks
from offbeat.training.tasks import Task
from offbeat.training.torch_generators import generators, restore, states

TRIED = (1, 8, 31, 64, 128, 300)  # examples of the batches on which a tape is compared with autograd,
FEW, WORK = 31, 2**26  # of large models only so many, or as many as make so many products
_AGREED: dict[Any, bool] = {}  # of this process: forms of tapes that were tried, and whether they have autograd's bits


def overrides(rule: LocalRule, name: str) -> bool:
    """Has the rule its own version of this method?"""
    return getattr(type(rule), name, None) is not getattr(LocalRule, name)


class Gradients:
    """Makes the gradients of one bound module. `serve` says for which rule and job."""

    def __init__(self, binding: Binding, task: Task) -> None:
        self.w = binding.w
        self.sources = generators(binding.vector.device)
        self.masks = Masks(binding.module)
        self.drops = bool(self.masks)
        self.rewinds = False
        self._module = binding.module
        self._params = binding.params
        self._task_loss = task.loss
        self._tape, self._tried = Tape.of(binding, task), False  # tried: did it give autograd's bits, once?
        self._watched = False
        self._rule: LocalRule | None = None  # only a rule with a loss of its own
        self._job: LocalJob | None = None
        self._features: Tensor | None = None

    @contextmanager
    def serve(self, rule: LocalRule, job: LocalJob) -> Iterator[None]:
        # only a rule with a direction of its own can ask for a second evaluation
        self.rewinds = overrides(rule, "direction")
        self._watched = watched(self._params)
        with self.masks.serve():
            yield from self._serve_loss(rule, job)

    def _serve_loss(self, rule: LocalRule, job: LocalJob) -> Iterator[None]:
        if not overrides(rule, "loss"):
            yield
            return
        self._rule, self._job = rule, job
        hook = head(self._module, rule.head).register_forward_pre_hook(self._remember)
        try:
            yield
        finally:
            hook.remove()
            self._rule = self._job = self._features = None

    def here(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient at w; batch statistics move."""
        tape = self._tape
        if tape is None or self._watched or self._rule is not None or not tape.reads(x, y):
            return self._by_graph(x, y)
        if not self._tried:
            key = tape.form, torch.get_num_threads()
            if key not in _AGREED:
                _AGREED[key] = self._agrees(tape)
            self._tape, self._tried = tape if _AGREED[key] else None, True
            return self.here(x, y)
        return tape(x, y)

    def _agrees(self, tape: Tape) -> bool:
        """Has it autograd's bits? Tried at a made-up point, on made-up batches: every process that trains has to come
        to the same answer, whatever its first job is.
        """
        draw, sizes = torch.Generator().manual_seed(0), [n for n in TRIED if n <= FEW or n * self.w.numel() <= WORK]
        with torch.inference_mode(False), torch.enable_grad(), borrowed(self._module, self.w):
            for p in self._params:  # biases above zero: a unit that gives nothing hides how it was summed
                made = torch.randn(p.shape, generator=draw, dtype=p.dtype)
                p.detach().copy_(made / 8 if p.dim() > 1 else made.abs())
            batches = (tape.made_up(examples, draw) for examples in sizes)
            try:
                return all(torch.equal(self._by_graph(x, y), tape(x, y)) for x, y in batches)
            except (RuntimeError, AttributeError):  # another version of torch may not have these operations
                return False

    def _by_graph(self, x: Tensor, y: Tensor) -> Tensor:
        outputs = self._module(x)
        loss = self._task_loss(outputs, y) if self._rule is None else self._rule_loss(outputs, y)
        grads = torch.autograd.grad(loss, self._params, allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in grads])

    def elsewhere(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradient at any point; nothing moves."""
        if point.shape != self.w.shape:
            raise ProtocolError(
                f"a rule asked for the gradient at shape {tuple(point.shape)}; w has {tuple(self.w.shape)}"
            )
        with borrowed(self._module, self.w):
            self.w.copy_(point)
            return self.here(x, y)

    def _rule_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        assert self._rule is not None
        assert self._job is not None
        if self._features is None:
            raise ProtocolError(
                f"{type(self._rule).__name__} has a loss on features, but the model never called its head"
            )
        loss = self._rule.loss(self._job, outputs, self._features, y)
        return self._task_loss(outputs, y) if loss is None else loss

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._features = inputs[0] if inputs else None


class BatchGradient:
    """grad(point) for one batch."""

    __slots__ = ("_first", "_key", "_owner", "_states", "_x", "_y")

    def __init__(self, owner: Gradients, x: Tensor, y: Tensor, key: Tensor | None) -> None:
        self._owner = owner
        self._key = key  # the noise of this step, where the model drops anything
        self._x = x
        self._y = y
        self._first = True
        self._states: list[Tensor] | None = None

    def __call__(self, point: Tensor) -> Tensor:
        owner = self._owner
        if self._key is not None:
            owner.masks.turn(self._key)
        if owner.rewinds:
            if self._states is None:
                self._states = states(owner.sources)
            else:
                restore(owner.sources, self._states)
        if self._first and (point is owner.w or _same(point, owner.w)):
            self._first = False
            return owner.here(self._x, self._y)
        return owner.elsewhere(point, self._x, self._y)


@contextmanager
def borrowed(module: nn.Module, w: Tensor) -> Iterator[None]:
    """Whatever is done meanwhile to w and to the module's buffers is undone."""
    kept = w.clone()
    statistics = [(m, name, b, b.clone()) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    try:
        yield
    finally:
        w.copy_(kept)
        for m, name, b, value in statistics:
            m._buffers[name] = b  # a module may have put another tensor there
            b.copy_(value)


def head(module: nn.Module, name: str | None = None) -> nn.Module:
    """The module of that name; without a name the last that has parameters of its own."""
    if name is not None:
        known: dict[str, nn.Module] = dict(module.named_modules())
        if name not in known:
            raise unknown("module", name, filter(None, known))
        return known[name]
    return [m for m in module.modules() if any(p is not None for p in m._parameters.values())][-1]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape
