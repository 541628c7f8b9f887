"""Closed-form gradients of many clients, for chains of fully connected layers.

A step of a stack takes two or three batched matrix products per layer, without autograd and vmap. Examples are columns,
(clients, features, examples), so weights and gradients are views of the flat vectors. Shorter batches can be padded;
padding has weight zero. A forward pre-hook is allowed if it sets `by_example = True`, i.e. transforms each example
independently and always in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.vector import Layout, Slice
from offbeat.training.client_data import ClientData
from offbeat.training.tasks import Classification, MultiLabel, Regression, Task

# (outputs (clients, outputs, examples), targets of the same shape; of classes (clients, 1, examples)) -> the gradient
# of the summed loss, but for the mean over examples
Error = Callable[[Tensor, Tensor], Tensor]
InputTransform = Callable[[Tensor], Tensor]  # what examples pass before the first layer
ACTIVATIONS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu,
    nn.Tanh: torch.tanh,
    nn.Sigmoid: torch.sigmoid,
}
_ACTIVATION_SLOPES: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {  # of the same, by what came out
    nn.ReLU: lambda out: out > 0,
    nn.Tanh: lambda out: 1 - out * out,
    nn.Sigmoid: lambda out: out * (1 - out),
}


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """The position of a fully connected layer's parameters in a vector."""

    weight: Slice
    bias: Slice | None


Link = DenseLayer | type[nn.Module]
Views = list[tuple[Tensor, Tensor | None]]  # of each layer: weight (clients, outputs, inputs), bias (clients, outputs)


@dataclass(frozen=True, slots=True)
class DenseChain:
    transform: InputTransform | None
    links: tuple[Link, ...]
    error: Error

    @staticmethod
    def for_module(module: nn.Module, layout: Layout, task: Task, data: ClientData) -> DenseChain | None:
        """Return the chain, or None for any other model, loss or kind of data."""
        hooks = tuple(module._forward_pre_hooks.values())
        if not all(getattr(hook, "by_example", False) for hook in hooks):
            return None
        transform = partial(_apply_input_hooks, hooks, module) if hooks else None
        sample = data.take(data.sample(1)[0], torch.zeros(1, dtype=torch.int64))[0]
        sample = sample if transform is None else transform(sample)
        links = dense_links(module, layout, tuple(sample.shape[1:]))
        if links is None or sample.dtype not in (torch.float32, torch.float64):
            return None
        if {p.dtype for p in module.parameters()} != {sample.dtype}:
            return None
        outputs, inputs = zip(*(link.weight.shape for link in links if isinstance(link, DenseLayer)), strict=True)
        if inputs != (sample[0].numel(), *outputs[:-1]):
            return None  # the model says what is wrong
        error = _loss_error(task, outputs[-1], data)
        return None if error is None else DenseChain(transform, links, error)

    def views(self, vectors: Tensor) -> Views:
        """Return the weights of each layer as views of these vectors."""
        dense = (link for link in self.links if isinstance(link, DenseLayer))
        return [(slice_view(vectors, d.weight), None if d.bias is None else slice_view(vectors, d.bias)) for d in dense]

    def gradient(self, points: Tensor, x: Tensor, y: Tensor, sizes: Tensor | None = None) -> Tensor:
        """Return the gradient of each client's mean loss; `sizes` are the numbers of examples that count."""
        grad = torch.empty(points.shape, dtype=points.dtype, device=points.device)
        self.write_gradient(self.views(points), self.views(grad), x, y, sizes)
        return grad

    def write_gradient(self, views: Views, into: Views, x: Tensor, y: Tensor, sizes: Tensor | None = None) -> None:
        """Write the gradient at these weights into views of other vectors."""
        shares = 1 / x.shape[1] if sizes is None else _example_weights(sizes, x.shape[1], views[0][0].dtype)
        for layer, d, below in self._backward(views, x, y, shares):
            weight, bias = into[layer]
            torch.bmm(d, below, out=weight)
            if bias is not None:
                torch.sum(d, 2, out=bias)

    def descend(self, views: Views, x: Tensor, y: Tensor, sizes: Tensor | None, rates: Tensor) -> None:
        """Take one SGD step in place; without `sizes`, `rates` (clients, 1, 1) are divided by the batch size."""
        shares = rates if sizes is None else rates * _example_weights(sizes, x.shape[1], rates.dtype)
        for layer, d, below in self._backward(views, x, y, shares):
            weight, bias = views[layer]
            weight.baddbmm_(d, below, alpha=-1)
            if bias is not None:
                bias.sub_(d.sum(2))

    def moments(self, point: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of one client's per-example gradients and of their squares.

        The gradient of a weight is a product of two numbers, so its square is the product of their squares.
        """
        sums = torch.empty((2, 1, *point.shape), dtype=point.dtype, device=point.device)
        plain, squared = self.views(sums[0]), self.views(sums[1])
        for layer, d, below in self._backward(self.views(point[None]), x[None], y[None], 1.0):
            for into, error, entered in ((plain, d, below), (squared, d * d, below * below)):
                weight, bias = into[layer]
                weight.baddbmm_(error, entered, beta=0)
                if bias is not None:
                    torch.sum(error, 2, out=bias)
        return sums[0, 0], sums[1, 0]

    def _backward(
        self, views: Views, x: Tensor, y: Tensor, shares: Tensor | float
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (layer, error of its output, its input) from last to first; the product is the gradient of the weights.

        `shares` are the weights of the examples. A layer's weights may be changed once it was yielded.
        """
        clients, examples = x.shape[:2]
        if self.transform is not None:
            x = self.transform(x.flatten(0, 1))
        out = x.reshape(clients, examples, -1).transpose(1, 2)
        passed, layer = [out], 0  # what went into each link, and what came out of the last
        for link in self.links:
            if isinstance(link, DenseLayer):
                weight, bias = views[layer]
                out = torch.bmm(weight, out) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, out)
                layer += 1
            else:
                out = ACTIVATIONS[link](out)
            passed.append(out)
        y = y.unsqueeze(1) if y.dim() == 2 else y.transpose(1, 2)
        d = self.error(out, y).mul_(shares)
        for i in range(len(self.links) - 1, -1, -1):
            link = self.links[i]
            if isinstance(link, DenseLayer):
                layer -= 1
                lower = torch.bmm(views[layer][0].transpose(1, 2), d) if layer > 0 else d
                yield layer, d, passed[i].transpose(1, 2)
                if layer == 0:
                    return
                d = lower
            else:
                d = d * _ACTIVATION_SLOPES[link](passed[i + 1])


def _apply_input_hooks(hooks: tuple[Callable[..., Any], ...], module: nn.Module, x: Tensor) -> Tensor:
    """Apply the module's `by_example` forward pre-hooks to inputs."""
    for hook in hooks:
        changed = hook(module, (x,))
        x = x if changed is None else changed[0] if isinstance(changed, tuple) else changed
    return x


def slice_view(vectors: Tensor, s: Slice) -> Tensor:
    """Return a slice of one or several vectors in its shape."""
    return vectors[..., s.start : s.stop].view(*vectors.shape[:-1], *s.shape)


def _example_weights(sizes: Tensor, examples: int, dtype: torch.dtype) -> Tensor:
    """Return the weight of each example, (clients, 1, examples): 1/size, or 0 for padding."""
    counts = torch.arange(examples, device=sizes.device) < sizes[:, None]
    return (counts / sizes[:, None].to(dtype)).unsqueeze(1)


def dense_links(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> tuple[Link, ...] | None:
    """Return the layers of a chain for examples of this shape, or None.

    Layers must have exactly these classes, without hooks, other parameters or buffers.
    """
    slices = {s.name: s for s in layout.slices}
    links: list[Link] = []
    flat = len(shape) == 1
    for name, m in _named_leaves("", module):
        if _has_hooks(m) or (m is not module and m._forward_pre_hooks):
            return None
        if type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1):
            flat = True
        elif not flat:
            return None
        elif type(m) is nn.Linear:
            weight, bias = slices.get(f"{name}weight"), slices.get(f"{name}bias")
            if weight is None or (m.bias is not None and bias is None):
                return None  # frozen, or another layer's too
            links.append(DenseLayer(weight, bias))
        elif type(m) in ACTIVATIONS:
            links.append(type(m))
        elif type(m) is not nn.Identity:
            return None
    dense = [link for link in links if isinstance(link, DenseLayer)]
    named = {s.name for link in dense for s in (link.weight, link.bias) if s is not None}
    return tuple(links) if dense and named == {s.name for s in layout.slices} else None


def _named_leaves(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of nested nn.Sequential modules in order, with their prefixes."""
    if type(module) is nn.Sequential and not _has_hooks(module) and (not name or not module._forward_pre_hooks):
        for key, child in module._modules.items():  # also one that comes twice
            if child is not None:
                yield from _named_leaves(f"{name}{key}.", child)
    else:
        yield name, module


def _has_hooks(module: nn.Module) -> bool:
    """Return whether a module has hooks or a replaced `forward`."""
    hooks = module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


def _loss_error(task: Task, outputs: int, data: ClientData) -> Error | None:
    """Return the gradient of the loss with respect to the outputs, or None for unsupported losses."""
    targets = data.label_shape
    if type(task) is Classification and task.criterion is None and targets == ():
        most = data.num_classes
        return cross_entropy_error if most is not None and most <= outputs else None  # else a loss says what is wrong
    if targets not in ((outputs,), *([()] if outputs == 1 else [])):
        return None
    if type(task) is Regression and task.criterion is None:
        return lambda out, y: (out - y).to(out.dtype) * (2 / outputs)
    if type(task) is MultiLabel and task.criterion is None:
        return lambda out, y: (torch.sigmoid(out) - y.to(out.dtype)) * (1 / outputs)
    return None


def cross_entropy_error(out: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of cross entropy with respect to the outputs: softmax(out) minus the one-hot label."""
    p = torch.softmax(out, 1)
    return p.scatter_(1, y, -1.0, reduce="add")
