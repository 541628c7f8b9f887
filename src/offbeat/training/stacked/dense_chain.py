"""Gradients of many clients in closed form, for models that are a chain of fully connected layers.

Without autograd and without vmap a step of a stack is two or three batched matrix products a layer. Examples are
columns, (clients, features, examples): so weights are multiplied as they lie in the flat vectors, gradients are written
where they belong in them, and a softmax runs along memory. A batch that is shorter than its neighbours may be filled
up: what fills it weighs nothing. A hook before the model may stand at the door if it says `by_example = True`: it makes
of each example what it would make of it alone, and the same each time (for a loop, or a GPU, all pass it once).
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
Door = Callable[[Tensor], Tensor]  # what examples pass before the first layer
ABOVE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu,
    nn.Tanh: torch.tanh,
    nn.Sigmoid: torch.sigmoid,
}
_SLOPE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {  # of the same, by what came out
    nn.ReLU: lambda out: out > 0,
    nn.Tanh: lambda out: 1 - out * out,
    nn.Sigmoid: lambda out: out * (1 - out),
}


@dataclass(frozen=True, slots=True)
class Dense:
    """One fully connected layer: where its weights lie in a vector."""

    weight: Slice
    bias: Slice | None


Link = Dense | type[nn.Module]
Views = list[tuple[Tensor, Tensor | None]]  # of each layer: weight (clients, outputs, inputs), bias (clients, outputs)


@dataclass(frozen=True, slots=True)
class Chain:
    door: Door | None
    links: tuple[Link, ...]
    error: Error

    @staticmethod
    def of(module: nn.Module, layout: Layout, task: Task, data: ClientData) -> Chain | None:
        """None for any other model, loss or kind of data."""
        hooks = tuple(module._forward_pre_hooks.values())
        if not all(getattr(hook, "by_example", False) for hook in hooks):
            return None
        door = partial(_through, hooks, module) if hooks else None
        sample = data.take(data.some(1)[0], torch.zeros(1, dtype=torch.int64))[0]
        sample = sample if door is None else door(sample)
        links = links_of(module, layout, tuple(sample.shape[1:]))
        if links is None or sample.dtype not in (torch.float32, torch.float64):
            return None
        if {p.dtype for p in module.parameters()} != {sample.dtype}:
            return None
        outputs, inputs = zip(*(link.weight.shape for link in links if isinstance(link, Dense)), strict=True)
        if inputs != (sample[0].numel(), *outputs[:-1]):
            return None  # the model says what is wrong
        error = _error(task, outputs[-1], data)
        return None if error is None else Chain(door, links, error)

    def views(self, vectors: Tensor) -> Views:
        """The weights of each layer as they lie in these vectors; they stay good while the vectors are changed in
        place.
        """
        dense = (link for link in self.links if isinstance(link, Dense))
        return [(lying_at(vectors, d.weight), None if d.bias is None else lying_at(vectors, d.bias)) for d in dense]

    def gradient(self, points: Tensor, x: Tensor, y: Tensor, sizes: Tensor | None) -> Tensor:
        """Of each client's mean loss at its point. `sizes`: how many of its examples count, where not all do."""
        grad = torch.empty(points.shape, dtype=points.dtype, device=points.device)
        shares = 1 / x.shape[1] if sizes is None else _shares(sizes, x.shape[1], points.dtype)
        into = self.views(grad)
        for layer, d, below in self._backward(self.views(points), x, y, shares):
            weight, bias = into[layer]
            weight.baddbmm_(d, below, beta=0)
            if bias is not None:
                torch.sum(d, 2, out=bias)
        return grad

    def descend(self, views: Views, x: Tensor, y: Tensor, sizes: Tensor | None, rates: Tensor) -> None:
        """One step of plain descent, in place; `rates` (clients, 1, 1), where all examples count over their number."""
        shares = rates if sizes is None else rates * _shares(sizes, x.shape[1], rates.dtype)
        for layer, d, below in self._backward(views, x, y, shares):
            weight, bias = views[layer]
            weight.baddbmm_(d, below, alpha=-1)
            if bias is not None:
                bias.sub_(d.sum(2))

    def moments(self, point: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Of one client: the sum of its examples' gradients, and of their squares. A weight's gradient by an example is
        a product of two numbers, so its square is the product of theirs: no example's gradient is ever made.
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
        """(a layer, the error above it, what went into it) from the last to the first; the gradient of its weights is
        the product. `shares`: what an example weighs. When a layer is given out, its weights are not needed any more.
        """
        clients, examples = x.shape[:2]
        if self.door is not None:
            x = self.door(x.flatten(0, 1))
        out = x.reshape(clients, examples, -1).transpose(1, 2)
        passed, layer = [out], 0  # what went into each link, and what came out of the last
        for link in self.links:
            if isinstance(link, Dense):
                weight, bias = views[layer]
                out = torch.bmm(weight, out) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, out)
                layer += 1
            else:
                out = ABOVE[link](out)
            passed.append(out)
        y = y.unsqueeze(1) if y.dim() == 2 else y.transpose(1, 2)
        d = self.error(out, y).mul_(shares)
        for i in range(len(self.links) - 1, -1, -1):
            link = self.links[i]
            if isinstance(link, Dense):
                layer -= 1
                lower = torch.bmm(views[layer][0].transpose(1, 2), d) if layer > 0 else d
                yield layer, d, passed[i].transpose(1, 2)
                if layer == 0:
                    return
                d = lower
            else:
                d = d * _SLOPE[link](passed[i + 1])


def _through(hooks: tuple[Callable[..., Any], ...], module: nn.Module, x: Tensor) -> Tensor:
    """What hooks before the model make of its inputs: only of such that say `by_example`."""
    for hook in hooks:
        made = hook(module, (x,))
        x = x if made is None else made[0] if isinstance(made, tuple) else made
    return x


def lying_at(vectors: Tensor, s: Slice) -> Tensor:
    """What lies there in a vector, or in each of several."""
    return vectors[..., s.start : s.stop].view(*vectors.shape[:-1], *s.shape)


def _shares(sizes: Tensor, examples: int, dtype: torch.dtype) -> Tensor:
    """(clients, 1, examples): one part in each that counts, nothing in the others."""
    counts = torch.arange(examples, device=sizes.device) < sizes[:, None]
    return (counts / sizes[:, None].to(dtype)).unsqueeze(1)


def links_of(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> tuple[Link, ...] | None:
    """The chain a module is for examples of that shape, if it is one: exactly these classes, which nothing was hooked
    to, and nothing else that is learned or counted.
    """
    slices = {s.name: s for s in layout.slices}
    links: list[Link] = []
    flat = len(shape) == 1
    for name, m in _flattened("", module):
        if _altered(m) or (m is not module and m._forward_pre_hooks):
            return None
        if type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1):
            flat = True
        elif not flat:
            return None
        elif type(m) is nn.Linear:
            weight, bias = slices.get(f"{name}weight"), slices.get(f"{name}bias")
            if weight is None or (m.bias is not None and bias is None):
                return None  # frozen, or another layer's too
            links.append(Dense(weight, bias))
        elif type(m) in ABOVE:
            links.append(type(m))
        elif type(m) is not nn.Identity:
            return None
    dense = [link for link in links if isinstance(link, Dense)]
    named = {s.name for link in dense for s in (link.weight, link.bias) if s is not None}
    return tuple(links) if dense and named == {s.name for s in layout.slices} else None


def _flattened(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential and not _altered(module) and (not name or not module._forward_pre_hooks):
        for key, child in module._modules.items():  # also one that comes twice
            if child is not None:
                yield from _flattened(f"{name}{key}.", child)
    else:
        yield name, module


def _altered(module: nn.Module) -> bool:
    """Has it hooks, or a forward of its own?"""
    hooks = module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


def _error(task: Task, outputs: int, data: ClientData) -> Error | None:
    targets = data.targets_shape
    if type(task) is Classification and task.criterion is None and targets == ():
        most = data.num_classes
        return classes if most is not None and most <= outputs else None  # else a loss says what is wrong
    if targets not in ((outputs,), *([()] if outputs == 1 else [])):
        return None
    if type(task) is Regression and task.criterion is None:
        return lambda out, y: (out - y).to(out.dtype) * (2 / outputs)
    if type(task) is MultiLabel and task.criterion is None:
        return lambda out, y: (torch.sigmoid(out) - y.to(out.dtype)) * (1 / outputs)
    return None


def classes(out: Tensor, y: Tensor) -> Tensor:
    """Of cross entropy: softmax(out) - 1 at the class."""
    p = torch.softmax(out, 1)
    return p.scatter_(1, y, -1.0, reduce="add")
