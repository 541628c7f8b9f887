"""How sensitive a model is to each of its parameters, on a calibration batch that all models share: FedPSA's probe.

The module is a copy in eval mode and is only called through `functional_call`, with parameters and buffers handed in:
neither it nor the vector keeps a trace. Per-sample gradients come from torch.func; a module it cannot handle (one that
branches on values, say) is taken sample by sample. A chain of fully connected layers needs none of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from offbeat.core import draws
from offbeat.core.errors import ConfigError
from offbeat.core.strategies.fedpsa.sketch import Fisher, GaussianSketch
from offbeat.core.vector import Layout
from offbeat.training.client_data import ClientData, Pair, checked
from offbeat.training.stacked.dense_chain import Chain
from offbeat.training.tasks import Loss, Task, as_task
from offbeat.training.torch_generators import generators, seeded

Tensors = dict[str, Tensor]

_AT_ONCE = 2**24  # entries of per-sample gradients held together


class Sensitivity:
    """sensitivity(vector) -> |g∘θ - ½F∘θ²| of a model's trainable entries (eq. 8 of the paper), in layout order."""

    def __init__(
        self, module: nn.Module, x: Tensor, y: Tensor, task: Task | Loss | None = None, fisher: Fisher = "sample"
    ) -> None:
        self._x, self._y = checked(x, y, where="calibration data: ")
        self._task = as_task(task, self._y.dtype)
        self._fisher = fisher
        self._module = deepcopy(module).eval()
        self.layout = Layout.of(self._module)
        self._sources = generators(self._x.device)
        self._one_by_one = False  # this module is beyond vmap
        self._chain = Chain.of(self._module, self.layout, self._task, ClientData.own([(self._x, self._y)]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Sensitivity, (self._module, self._x, self._y, self._task, self._fisher)

    def __call__(self, vector: Tensor) -> Tensor:
        theta = self.layout.trainable(vector)
        if self._fisher == "batch":
            g = self.gradient(vector)
            return (g * theta - g.square() * theta.square() / 2).abs()
        with torch.no_grad(), seeded(self._sources, 0):
            g, fisher = self._moments(vector.detach())
        return (g * theta - fisher * theta.square() / 2).abs()  # s = |∇F θ - ½ F_ii θ²|

    def gradient(self, vector: Tensor) -> Tensor:
        """The gradient of the mean loss of the whole batch."""
        with torch.enable_grad(), seeded(self._sources, 0):
            return torch.cat([part.flatten() for part in self._one(*self._split(vector.detach()), self._x, self._y)])

    def _moments(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over the samples of their gradients, and of the squares of those."""
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
        """Gradients sample by sample, some samples at once: one tensor a parameter, samples first."""
        params, buffers = self._split(vector)
        chunk = max(1, _AT_ONCE // self.layout.num_params)
        for x, y in zip(torch.split(self._x, chunk), torch.split(self._y, chunk), strict=True):
            yield self._together(params, buffers, x, y) or self._apart(params, buffers, x, y)

    def _together(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> list[Tensor] | None:
        if self._one_by_one:
            return None
        try:
            each = vmap(grad(self._loss), in_dims=(None, None, 0, 0))
            gradients = each(params, buffers, x.unsqueeze(1), y.unsqueeze(1))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        # whatever vmap does not like; what is wrong with the module itself shows when it is called plainly
        except Exception:
            self._one_by_one = True
            return None
        return [gradients[name] for name in params]

    def _apart(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            samples = [self._one(params, buffers, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
        return [torch.stack(parts) for parts in zip(*samples, strict=True)]

    def _one(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """The gradient of these examples' mean loss."""
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        loss = self._loss(leaves, buffers, x, y)
        return torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)

    def _loss(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return self._task.loss(functional_call(self._module, (params, buffers), (x,)), y)

    def _split(self, vector: Tensor) -> tuple[Tensors, Tensors]:
        """The vector as the module names it. All buffers are copies: a module may write into them."""
        params = {s.name: vector[s.start : s.stop].view(s.shape) for s in self.layout.of_kind("param")}
        buffers = {name: b.detach().clone() for name, b in self._module.named_buffers()}
        for s in self.layout.slices:
            if s.kind != "param":
                buffers[s.name].copy_(vector[s.start : s.stop].view(s.shape))
        return params, buffers


class Probe:
    """probe(model) -> its sketch. Clients and server hold the same one, so their sketches can be compared."""

    def __init__(
        self, layout: Layout, sketcher: GaussianSketch, seed: int, signal: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._layout, self._sketcher, self._seed = layout, sketcher, seed
        self._signal = signal or layout.trainable  # without a signal the parameters themselves are sketched
        self._record: Callable[[Tensor], Tensor] | None = None  # on a GPU

    def __reduce__(self) -> tuple[Any, ...]:
        own = self._signal if isinstance(self._signal, Sensitivity) else None
        return Probe, (self._layout, self._sketcher, self._seed, own)

    def __call__(self, vector: Tensor) -> Tensor:
        if vector.dim() > 1:  # a stack of clients
            return torch.stack([self(one) for one in vector])
        if self._record is None and vector.device.type == "cuda":
            held = self._sketcher.kept(self._layout.num_params, self._seed, vector.device)
            self._record = Recorded(self._of, vector, held) if held is not None else self._of
        return self._of(vector) if self._record is None else self._record(vector)

    def _of(self, vector: Tensor) -> Tensor:
        return self._sketcher.sketch(self._signal(vector), self._seed)


class Recorded:
    """A function of one vector, captured as a CUDA graph: many small operations cost what one does."""

    def __init__(self, work: Callable[[Tensor], Tensor], like: Tensor, held: list[Tensor]) -> None:
        self._held = held  # what it reads must stay where it is
        self._graph = torch.cuda.CUDAGraph()
        self._given = like.clone()
        for _ in range(2):
            work(self._given)  # whatever is made once is made before
        with torch.cuda.graph(self._graph):
            self._found = work(self._given)

    def __call__(self, vector: Tensor) -> Tensor:
        self._given.copy_(vector)
        self._graph.replay()
        return self._found.clone()


def make_probe(sketcher: GaussianSketch, module: nn.Module, data: ClientData, task: Task, seed: int) -> Probe:
    """The probe a strategy's sketcher asks for, on this module and data of this kind."""
    layout = Layout.of(module)
    if sketcher.signal == "parameters":
        return Probe(layout, sketcher, seed)
    batch = real_batch if sketcher.calibration == "real" else noise_batch
    x, y = batch(data, sketcher.calibration_size, seed)
    return Probe(layout, sketcher, seed, Sensitivity(module, x, y, task, sketcher.fisher))


def noise_batch(data: ClientData, size: int, seed: int) -> Pair:
    """Nobody's data: inputs N(0, 1), the normalised input space; labels uniform over the classes, or N(0, 1)."""
    x, y = data.take(next(iter(data.num_examples)), torch.tensor([0]))  # what an example looks like
    if not x.is_floating_point():
        given = f"calibration = 'gaussian' makes real inputs, and this data has {x.dtype}"
        raise ConfigError(f"{given}: use calibration = 'real'")
    g = draws.generator(seed, "calibration")
    inputs = torch.randn((size, *x.shape[1:]), generator=g, dtype=x.dtype)
    if data.num_classes is None:
        labels = torch.randn((size, *y.shape[1:]), generator=g, dtype=y.dtype)
    else:
        labels = torch.randint(data.num_classes, (size, *y.shape[1:]), generator=g)
    return inputs.to(x.device), labels.to(y.device)


def real_batch(data: ClientData, size: int, seed: int) -> Pair:
    """Training examples with their labels, drawn uniformly over all clients' without replacement."""
    clients, ends = list(data.num_examples), list(accumulate(data.num_examples.values()))
    drawn = torch.randperm(ends[-1], generator=draws.generator(seed, "calibration"))[:size].tolist()
    places = [(bisect_right(ends, n), n) for n in drawn]  # whose n-th example of all it is
    pairs = [data.take(clients[i], torch.tensor([n - ends[i] + data.size(clients[i])])) for i, n in places]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
