"""The gradient of one batch as a function of the point, which rules call at each step.

Parameters are views into one flat vector w. The first evaluation at w runs the module directly and updates its batch
statistics. Every other evaluation restores w and the statistics afterwards. All evaluations of a batch use the same
dropout masks, so gradients at two points differ only by the point.

For small chains of fully connected layers autograd's bookkeeping takes longer than its arithmetic. `DenseGradient`
calls the operations that autograd would run directly, bit for bit. It writes each gradient to a separate tensor, as
autograd does, because on some processors the memory address of the result decides the order in which a matrix product
sums. `stacked.dense_chain` computes the same gradients for stacks, within rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, strided

from offbeat.core.errors import ProtocolError, unknown_name
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.core.vector import Binding
from offbeat.training.descent import device_generators, get_states, set_states
from offbeat.training.regularization import DropoutMasks
from offbeat.training.stacked.dense_chain import ACTIVATIONS, DenseLayer, Link, dense_links, slice_view
from offbeat.training.tasks import Classification, Task
from offbeat.training.torch_state import has_global_hooks

CHECKED_BATCHES = (1, 8, 31, 64, 128, 300)  # sizes of the batches on which DenseGradient is compared with autograd;
SMALL_BATCH, MAX_CHECK_PRODUCTS = 31, 2**26  # larger batches only if batch size times model size is at most this
# (structure of a DenseGradient, number of threads) -> whether it gives the bits of autograd in this process
_matches_autograd: dict[tuple[object, int], bool] = {}


def overrides(rule: LocalRule, name: str) -> bool:
    """Return whether the rule overrides this method."""
    return getattr(type(rule), name, None) is not getattr(LocalRule, name)


class Gradients:
    """The gradients of one bound module; `use_rule` sets the rule and the job they are for."""

    def __init__(self, binding: Binding, task: Task) -> None:
        self.w = binding.w
        self.sources = device_generators(binding.vector.device)
        self.masks = DropoutMasks(binding.module)
        self.has_dropout = bool(self.masks)
        self.repeats_draws = False
        self._module = binding.module
        self._params = binding.params
        self._task_loss = task.loss
        self._dense, self._dense_checked = DenseGradient.for_model(binding, task), False
        self._observed = False
        self._rule: LocalRule | None = None  # set only if the rule has its own loss
        self._job: LocalJob | None = None
        self._features: Tensor | None = None

    @contextmanager
    def use_rule(self, rule: LocalRule, job: LocalJob) -> Iterator[None]:
        """Prepare the gradients for the steps of this job."""
        # only a rule with its own direction() can evaluate a batch more than once
        self.repeats_draws = overrides(rule, "direction")
        self._observed = _autograd_observed(self._params)
        with self.masks.install() if self.has_dropout else nullcontext():
            yield from self._use_rule_loss(rule, job)

    def _use_rule_loss(self, rule: LocalRule, job: LocalJob) -> Iterator[None]:
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
        dense = self._dense
        if dense is None or self._observed or self._rule is not None or not dense.supports(x, y):
            return self._by_autograd(x, y)
        if not self._dense_checked:
            key = dense.structure, torch.get_num_threads()
            if key not in _matches_autograd:
                _matches_autograd[key] = self._is_exact(dense)
            self._dense, self._dense_checked = dense if _matches_autograd[key] else None, True
            return self.at_weights(x, y)
        return dense(x, y)

    def _is_exact(self, dense: DenseGradient) -> bool:
        """Return whether `dense` gives the bits of autograd.

        Weights and batches are random but fixed, so all processes get the same answer, independent of their first job.
        """
        draw, sizes = (
            torch.Generator().manual_seed(0),
            [n for n in CHECKED_BATCHES if n <= SMALL_BATCH or n * self.w.numel() <= MAX_CHECK_PRODUCTS],
        )
        with torch.inference_mode(False), torch.enable_grad(), preserved_state(self._module, self.w):
            for p in self._params:  # positive biases, because an inactive unit would hide rounding differences
                values = torch.randn(p.shape, generator=draw, dtype=p.dtype)
                p.detach().copy_(values / 8 if p.dim() > 1 else values.abs())
            batches = (dense.random_batch(examples, draw) for examples in sizes)
            try:
                return all(torch.equal(self._by_autograd(x, y), dense(x, y)) for x, y in batches)
            except (RuntimeError, AttributeError):  # operations that other versions of torch may lack
                return False

    def _by_autograd(self, x: Tensor, y: Tensor) -> Tensor:
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
        with preserved_state(self._module, self.w):
            self.w.copy_(point)
            return self.at_weights(x, y)

    def _rule_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        assert self._rule is not None
        assert self._job is not None
        if self._features is None:
            raise ProtocolError(
                f"{type(self._rule).__name__} has a loss on features, but the model never called its head"
            )
        loss = self._rule.loss(self._job, outputs, self._features, y)
        return self._task_loss(outputs, y) if loss is None else loss

    def _store_features(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
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
        owner = self._owner
        if self._key is not None:
            owner.masks.set_key(self._key)
        if owner.repeats_draws:
            if self._states is None:
                self._states = get_states(owner.sources)
            else:
                set_states(owner.sources, self._states)
        if self._first and (point is owner.w or _same_memory(point, owner.w)):
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


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape


_aten = torch.ops.aten
_MEAN_REDUCTION, _IGNORED_LABEL = 1, -100  # the constants of cross_entropy
# (gradient of the output, output) -> gradient of the input
_ACTIVATION_GRADIENTS: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda g, out: _aten.threshold_backward.default(g, out, 0),
    nn.Tanh: _aten.tanh_backward.default,
    nn.Sigmoid: _aten.sigmoid_backward.default,
}


@dataclass(frozen=True, slots=True)
class DenseViews:
    """The parameters of a layer as views of the model's vector, and tensors for their gradients."""

    transposed: Tensor  # the weight as (inputs, outputs)
    weight: Tensor
    bias: Tensor | None
    weight_grad: Tensor
    bias_grad: Tensor | None


class DenseGradient:
    """The gradient of cross entropy at the weights of a binding; made by `for_model`."""

    def __init__(self, binding: Binding, links: Sequence[Link], flattens: bool) -> None:
        self._flattens, self._dtype = flattens, binding.w.dtype
        self.structure = tuple(links), self._dtype  # equal structures run the same operations
        self._unit = binding.w.new_ones(())
        self._steps = [_layer(link, binding.w) if isinstance(link, DenseLayer) else link for link in links]
        self._first = next(i for i, link in enumerate(links) if isinstance(link, DenseLayer))
        gradients: dict[int, Tensor] = {}  # by their start in the vector
        for link, step in zip(links, self._steps, strict=True):
            if isinstance(link, DenseLayer) and isinstance(step, DenseViews):
                gradients[link.weight.start] = step.weight_grad.view(-1)
                if link.bias is not None and step.bias_grad is not None:
                    gradients[link.bias.start] = step.bias_grad
        self._grads = [gradients[start] for start in sorted(gradients)]

    @staticmethod
    def for_model(binding: Binding, task: Task) -> DenseGradient | None:
        """Return the gradient of a chain of dense layers with cross entropy, or None for other models and losses."""
        module, layout, w = binding.module, binding.layout, binding.w
        usual = type(task) is Classification and task.criterion is None and not module._forward_pre_hooks
        links = dense_links(module, layout, (1,)) if usual else None  # of examples that are vectors
        if links is None or not w.is_cpu or w.dtype not in (torch.float32, torch.float64):
            return None
        # for a matrix with one row or column autograd may use the transposed product, which may round differently
        if any(1 in link.weight.shape for link in links if isinstance(link, DenseLayer)):
            return None
        return DenseGradient(binding, links, flattens=dense_links(module, layout, (1, 1)) is not None)

    def supports(self, x: Tensor, y: Tensor) -> bool:
        """Return whether this batch has the types and shapes that this class handles."""
        dense = type(x) is type(y) is Tensor and x.is_cpu and y.is_cpu and x.layout is strided and not x.requires_grad
        rows = x.dim() == 2 or (self._flattens and x.dim() > 2)
        return dense and rows and x.dtype is self._dtype and y.dim() == 1 and y.dtype is torch.int64

    def random_batch(self, examples: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a random batch of supported examples."""
        layers = [step for step in self._steps if isinstance(step, DenseViews)]
        inputs, outputs = layers[0].weight.shape[1], layers[-1].weight.shape[0]
        x = torch.randn(examples, inputs, generator=draw, dtype=self._dtype)
        return x, torch.randint(outputs, (examples,), generator=draw)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient as a new vector."""
        steps, first, out = self._steps, self._first, x.flatten(1)
        values = [out]  # the input of each step, and the output of the last
        for step in steps:
            if not isinstance(step, DenseViews):
                out = ACTIVATIONS[step](out)
            elif step.bias is None:
                out = out.mm(step.transposed)
            else:
                out = torch.addmm(step.bias, out, step.transposed)
            values.append(out)
        g = self._error(out, y)
        for i in range(len(steps) - 1, first - 1, -1):
            step = steps[i]
            if not isinstance(step, DenseViews):
                g = _ACTIVATION_GRADIENTS[step](g, values[i + 1])
                continue
            torch.mm(g.t(), values[i], out=step.weight_grad)
            if step.bias_grad is not None:
                torch.sum(g, 0, out=step.bias_grad)
            if i > first:
                g = g.mm(step.weight)
        return torch.cat(self._grads)

    def _error(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of the loss with respect to the outputs of the model."""
        logs = torch.log_softmax(out, 1)
        _, counted = _aten.nll_loss_forward.default(logs, y, None, _MEAN_REDUCTION, _IGNORED_LABEL)
        g = _aten.nll_loss_backward.default(self._unit, logs, y, None, _MEAN_REDUCTION, _IGNORED_LABEL, counted)
        gradient: Tensor = _aten._log_softmax_backward_data.default(g, logs, 1, logs.dtype)
        return gradient


def _layer(link: DenseLayer, w: Tensor) -> DenseViews:
    weight, bias = slice_view(w, link.weight), None if link.bias is None else slice_view(w, link.bias)
    return DenseViews(
        weight.t(), weight, bias, torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
    )


def _autograd_observed(params: Sequence[nn.Parameter]) -> bool:
    """Return whether hooks, anomaly detection or autocast observe or change autograd's work on these parameters."""
    hooked = has_global_hooks() or any(p._backward_hooks for p in params)  # type: ignore[no-untyped-call]
    return hooked or torch.is_anomaly_enabled() or torch.is_autocast_enabled("cpu")
