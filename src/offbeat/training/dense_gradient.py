"""The gradient of one batch without autograd, bit for bit, for chains of fully connected layers.

For small dense models autograd's bookkeeping takes longer than its arithmetic. This module calls the operations that
autograd would run directly. `stacked.dense_chain` computes the same gradients for stacks, within rounding.

Each gradient is written to a separate tensor, as in autograd, and copied from there: on some processors the memory
address of the result decides the order in which a matrix product sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn, strided

from offbeat.core.vector import Binding
from offbeat.training.stacked.dense_chain import ACTIVATIONS, DenseLayer, Link, dense_links, slice_view
from offbeat.training.tasks import Classification, Task

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
