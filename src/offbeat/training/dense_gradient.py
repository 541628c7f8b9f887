"""The gradient of one batch without autograd, for models that are a chain of fully connected layers: the same bits.

For such a model autograd's bookkeeping costs more than its arithmetic: a module's call, a graph, a loss that nobody
looks at. Here the operations that it would run are called one after the other. (`chain` has the same gradients for
stacks, free in the order of its sums, so within rounding.)

Each gradient is written to a tensor of its own, as autograd does, and copied from there: where in memory a matrix
product may put its result decides, on some processors, in which order it sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn, strided
from torch.nn.modules.module import _has_any_global_hook

from offbeat.core.vector import Binding
from offbeat.training.stacked.dense_chain import ABOVE, Dense, Link, links_of, lying_at
from offbeat.training.tasks import Classification, Task

_aten = torch.ops.aten
_MEAN, _IGNORED = 1, -100  # as cross_entropy has them: how losses are reduced, the label that counts for nothing
_BELOW: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {  # (gradient above, what came out) -> below
    nn.ReLU: lambda g, out: _aten.threshold_backward.default(g, out, 0),
    nn.Tanh: _aten.tanh_backward.default,
    nn.Sigmoid: _aten.sigmoid_backward.default,
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Views of the model's vector, and what gradients are written to."""

    turned: Tensor  # the weight, (inputs, outputs)
    weight: Tensor
    bias: Tensor | None
    weight_grad: Tensor
    bias_grad: Tensor | None


class Tape:
    """Of cross entropy at what the binding holds; None is made for any other model or loss. The module is looked at
    once: it is the trainer's own.
    """

    def __init__(self, binding: Binding, links: Sequence[Link], flattens: bool) -> None:
        self._flattens, self._dtype = flattens, binding.w.dtype
        self.form = tuple(links), self._dtype  # two tapes of one form do the same
        self._one = binding.w.new_ones(())
        self._steps = [_layer(link, binding.w) if isinstance(link, Dense) else link for link in links]
        self._first = next(i for i, link in enumerate(links) if isinstance(link, Dense))
        found: dict[int, Tensor] = {}  # gradients, by where they begin in a vector
        for link, step in zip(links, self._steps, strict=True):
            if isinstance(link, Dense) and isinstance(step, Layer):
                found[link.weight.start] = step.weight_grad.view(-1)
                if link.bias is not None and step.bias_grad is not None:
                    found[link.bias.start] = step.bias_grad
        self._grads = [found[start] for start in sorted(found)]

    @staticmethod
    def of(binding: Binding, task: Task) -> Tape | None:
        module, layout, w = binding.module, binding.layout, binding.w
        usual = type(task) is Classification and task.criterion is None and not module._forward_pre_hooks
        links = links_of(module, layout, (1,)) if usual else None  # of examples that are vectors
        if links is None or not w.is_cpu or w.dtype not in (torch.float32, torch.float64):
            return None
        # of a matrix of one row or column autograd may take the transposed product, which may round otherwise
        if any(1 in link.weight.shape for link in links if isinstance(link, Dense)):
            return None
        return Tape(binding, links, flattens=links_of(module, layout, (1, 1)) is not None)

    def reads(self, x: Tensor, y: Tensor) -> bool:
        """Are these examples such as it knows?"""
        plain = type(x) is type(y) is Tensor and x.is_cpu and y.is_cpu and x.layout is strided and not x.requires_grad
        rows = x.dim() == 2 or (self._flattens and x.dim() > 2)
        return plain and rows and x.dtype is self._dtype and y.dim() == 1 and y.dtype is torch.int64

    def made_up(self, examples: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """A batch such as it reads."""
        layers = [step for step in self._steps if isinstance(step, Layer)]
        inputs, outputs = layers[0].weight.shape[1], layers[-1].weight.shape[0]
        x = torch.randn(examples, inputs, generator=draw, dtype=self._dtype)
        return x, torch.randint(outputs, (examples,), generator=draw)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient, as a vector of its own."""
        steps, first, out = self._steps, self._first, x.flatten(1)
        passed = [out]  # what went into each step, and what came out of the last
        for step in steps:
            if not isinstance(step, Layer):
                out = ABOVE[step](out)
            elif step.bias is None:
                out = out.mm(step.turned)
            else:
                out = torch.addmm(step.bias, out, step.turned)
            passed.append(out)
        g = self._error(out, y)
        for i in range(len(steps) - 1, first - 1, -1):
            step = steps[i]
            if not isinstance(step, Layer):
                g = _BELOW[step](g, passed[i + 1])
                continue
            torch.mm(g.t(), passed[i], out=step.weight_grad)
            if step.bias_grad is not None:
                torch.sum(g, 0, out=step.bias_grad)
            if i > first:
                g = g.mm(step.weight)
        return torch.cat(self._grads)

    def _error(self, out: Tensor, y: Tensor) -> Tensor:
        """The gradient of the loss by what the model says."""
        logs = torch.log_softmax(out, 1)
        _, counted = _aten.nll_loss_forward.default(logs, y, None, _MEAN, _IGNORED)
        g = _aten.nll_loss_backward.default(self._one, logs, y, None, _MEAN, _IGNORED, counted)
        found: Tensor = _aten._log_softmax_backward_data.default(g, logs, 1, logs.dtype)
        return found


def _layer(link: Dense, w: Tensor) -> Layer:
    weight, bias = lying_at(w, link.weight), None if link.bias is None else lying_at(w, link.bias)
    return Layer(weight.t(), weight, bias, torch.empty_like(weight), None if bias is None else torch.empty_like(bias))


def watched(params: Sequence[nn.Parameter]) -> bool:
    """Does anybody look at what autograd does, or change it? Then it has to do it."""
    hooked = _has_any_global_hook() or any(p._backward_hooks for p in params)  # type: ignore[no-untyped-call]
    return hooked or torch.is_anomaly_enabled() or torch.is_autocast_enabled("cpu")
