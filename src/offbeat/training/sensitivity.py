"""FedPSA's probe: the sensitivity of a model to each parameter, on a calibration batch that all models share.

The module is a copy in eval mode, called only through `functional_call` with parameters and buffers as arguments, so
neither the module nor the vector changes. Per-sample gradients come from torch.func, or from one backward pass per
sample if a module does not support vmap. Chains of dense layers have a closed form.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from offbeat.core import draws
from offbeat.core.errors import ConfigError
from offbeat.core.strategies.fedpsa.sketch import Fisher, GaussianSketch
from offbeat.core.vector import Layout
from offbeat.training.client_data import ClientData, Pair, validate_examples
from offbeat.training.dense_chain import DenseChain
from offbeat.training.gradient import device_generators, seeded
from offbeat.training.tasks import Loss, Task, as_task

Tensors = dict[str, Tensor]

_MAX_GRADIENT_ENTRIES = 2**24  # entries of per-sample gradients in memory at once


class Sensitivity:
    """Compute |g∘θ - ½F∘θ²| of a model's trainable entries (eq. 8 of the paper), in layout order."""

    def __init__(
        self, module: nn.Module, x: Tensor, y: Tensor, task: Task | Loss | None = None, fisher: Fisher = "sample"
    ) -> None:
        self._x, self._y = validate_examples(x, y, where="calibration data: ")
        self._task = as_task(task, self._y.dtype)
        self._fisher = fisher
        self._module = deepcopy(module).eval()
        self.layout = Layout.of(self._module)
        self._sources = device_generators(self._x.device)
        self._vmap_failed = False
        self._chain = DenseChain.for_module(
            self._module, self.layout, self._task, ClientData.separate([(self._x, self._y)])
        )

    def __reduce__(self) -> tuple[object, ...]:
        return Sensitivity, (self._module, self._x, self._y, self._task, self._fisher)

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the sensitivity of each trainable entry of a model."""
        theta = self.layout.trainable(vector)
        if self._fisher == "batch":
            g = self.gradient(vector)
            return (g * theta - g.square() * theta.square() / 2).abs()
        with torch.no_grad(), seeded(self._sources, 0):
            g, fisher = self._moments(vector.detach())
        return (g * theta - fisher * theta.square() / 2).abs()  # s = |∇F θ - ½ F_ii θ²|

    def gradient(self, vector: Tensor) -> Tensor:
        """Return the gradient of the mean loss of the whole batch."""
        with torch.enable_grad(), seeded(self._sources, 0):
            return torch.cat(
                [part.flatten() for part in self._mean_gradient(*self._split(vector.detach()), self._x, self._y)]
            )

    def _moments(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of the per-sample gradients and of their squares."""
        if self._chain is not None:
            total, squares = self._chain.moments(vector, self._x, self._y)
            return total / len(self._x), squares / len(self._x)
        theta = self.layout.trainable(vector)
        total, squares = torch.zeros_like(theta), torch.zeros_like(theta)
        for parts in self._per_sample(vector):
            total += torch.cat([part.sum(0).flatten() for part in parts])
            squares += torch.cat([part.square().sum(0).flatten() for part in parts])
        return total / len(self._x), squares / len(self._x)  # g = 1/m Σ ∇F_k, F = 1/m Σ (∇F_k)²

    def _per_sample(self, vector: Tensor) -> Iterator[list[Tensor]]:
        """Yield per-sample gradients, block by block: one tensor per parameter, samples first."""
        params, buffers = self._split(vector)
        chunk = max(1, _MAX_GRADIENT_ENTRIES // self.layout.num_params)
        for x, y in zip(torch.split(self._x, chunk), torch.split(self._y, chunk), strict=True):
            yield self._vectorized(params, buffers, x, y) or self._sample_by_sample(params, buffers, x, y)

    def _vectorized(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> list[Tensor] | None:
        """Return the gradient of each sample by vmap, or None if the module does not support it."""
        if self._vmap_failed:
            return None
        try:
            each = vmap(grad(self._loss), in_dims=(None, None, 0, 0))
            gradients = each(params, buffers, x.unsqueeze(1), y.unsqueeze(1))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # not supported by vmap; errors of the module itself show in the sample-by-sample path
            self._vmap_failed = True
            return None
        return [gradients[name] for name in params]

    def _sample_by_sample(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the gradient of each sample with one backward pass per sample."""
        with torch.enable_grad():
            samples = [self._mean_gradient(params, buffers, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
        return [torch.stack(parts) for parts in zip(*samples, strict=True)]

    def _mean_gradient(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of the mean loss of these examples."""
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        loss = self._loss(leaves, buffers, x, y)
        return torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)

    def _loss(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of examples for these parameters."""
        return self._task.loss(functional_call(self._module, (params, buffers), (x,)), y)

    def _split(self, vector: Tensor) -> tuple[Tensors, Tensors]:
        """Split the vector into parameters and buffers by name; buffers are copied, as modules may change them."""
        params = {s.name: vector[s.start : s.stop].view(s.shape) for s in self.layout.of_kind("param")}
        buffers = {name: b.detach().clone() for name, b in self._module.named_buffers()}
        for s in self.layout.slices:
            if s.kind != "param":
                buffers[s.name].copy_(vector[s.start : s.stop].view(s.shape))
        return params, buffers


class Probe:
    """Compute the sketch of a model; clients and server use the same probe, so their sketches are comparable."""

    def __init__(
        self, layout: Layout, sketcher: GaussianSketch, seed: int, signal: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._layout, self._sketcher, self._seed = layout, sketcher, seed
        self._signal = signal or layout.trainable  # default: sketch the parameters themselves
        self._captured: Callable[[Tensor], Tensor] | None = None  # the same function as a CUDA graph

    def __reduce__(self) -> tuple[object, ...]:
        signal = self._signal if isinstance(self._signal, Sensitivity) else None
        return Probe, (self._layout, self._sketcher, self._seed, signal)

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the sketch of a model."""
        if vector.dim() > 1:  # a stack of clients
            return torch.stack([self(row) for row in vector])
        if self._captured is None and vector.device.type == "cuda":
            blocks = self._sketcher.cached_blocks(self._layout.num_params, self._seed, vector.device)
            self._captured = CapturedGraph(self._sketch, vector, blocks) if blocks is not None else self._sketch
        return self._sketch(vector) if self._captured is None else self._captured(vector)

    def _sketch(self, vector: Tensor) -> Tensor:
        """Compute the sketch of a model without a recorded graph."""
        return self._sketcher.sketch(self._signal(vector), self._seed)


class CapturedGraph:
    """A function of one vector captured as a CUDA graph, which launches its many small operations at once."""

    def __init__(self, work: Callable[[Tensor], Tensor], like: Tensor, constants: list[Tensor]) -> None:
        """Capture a function of one vector as a CUDA graph."""
        self._constants = constants  # the graph reads their memory, so they must not be freed
        self._graph = torch.cuda.CUDAGraph()
        self._input = like.clone()
        for _ in range(2):
            work(self._input)  # warm up: create everything that is created once
        with torch.cuda.graph(self._graph):
            self._output = work(self._input)

    def __call__(self, vector: Tensor) -> Tensor:
        """Replay the graph for a vector."""
        self._input.copy_(vector)
        self._graph.replay()
        return self._output.clone()


def make_probe(sketcher: GaussianSketch, module: nn.Module, data: ClientData, task: Task, seed: int) -> Probe:
    """Return the probe for a strategy's sketcher, this module and this kind of data."""
    layout = Layout.of(module)
    if sketcher.signal == "parameters":
        return Probe(layout, sketcher, seed)
    batch = real_batch if sketcher.calibration == "real" else noise_batch
    x, y = batch(data, sketcher.calibration_size, seed)
    return Probe(layout, sketcher, seed, Sensitivity(module, x, y, task, sketcher.fisher))


def noise_batch(data: ClientData, size: int, seed: int) -> Pair:
    """Return a random batch that belongs to no client: inputs N(0, 1), labels uniform over the classes or N(0, 1)."""
    x, y = data.take(next(iter(data.num_examples)), torch.tensor([0]))  # for shape and dtype
    if not x.is_floating_point():
        problem = f"calibration = 'gaussian' makes real inputs, but the data has {x.dtype}"
        raise ConfigError(f"{problem}: use calibration = 'real'")
    g = draws.generator(seed, "calibration")
    inputs = torch.randn((size, *x.shape[1:]), generator=g, dtype=x.dtype)
    if data.num_classes is None:
        labels = torch.randn((size, *y.shape[1:]), generator=g, dtype=y.dtype)
    else:
        labels = torch.randint(data.num_classes, (size, *y.shape[1:]), generator=g)
    return inputs.to(x.device), labels.to(y.device)


def real_batch(data: ClientData, size: int, seed: int) -> Pair:
    """Return training examples drawn uniformly from all clients without replacement."""
    clients, ends = list(data.num_examples), list(accumulate(data.num_examples.values()))
    drawn = torch.randperm(ends[-1], generator=draws.generator(seed, "calibration"))[:size].tolist()
    owners = [(bisect_right(ends, n), n) for n in drawn]  # index of the client that has example n
    pairs = [data.take(clients[i], torch.tensor([n - ends[i] + data.size(clients[i])])) for i, n in owners]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
