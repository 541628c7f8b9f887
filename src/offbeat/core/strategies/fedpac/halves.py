"""The split of a FedPAC model into a shared body and a personal head, and the client rule that trains both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from offbeat.core.errors import ConfigError, require, unknown_name
from offbeat.core.protocol import LocalJob, LocalRule, LocalWork, Phase
from offbeat.core.vector import Layout, new_vector


@dataclass(frozen=True, slots=True)
class Halves:
    """The split of a model into a body that all clients share and a head that each client has for itself."""

    module: str  # name of the head
    head: tuple[str, ...]  # names of param slices
    body: tuple[str, ...]
    classes: int  # number of outputs of the head
    width: int  # number of inputs of the head, the features

    @staticmethod
    def of(layout: Layout, name: str | None) -> Halves:
        """Split a model at the module `name`, or at the last module with parameters."""
        params = list(layout.of_kind("param"))
        module = params[-1].name.rpartition(".")[0] if name is None else name
        head = [s for s in params if s.name.startswith(f"{module}.")]
        if name is not None and not head:
            raise unknown_name("head", name, {s.name.rpartition(".")[0] for s in params} - {""})
        body = tuple(s.name for s in params if not s.name.startswith(f"{module}."))
        if not head or not body:
            reason = f"all parameters belong to {module!r}" if head else "this one is a single layer"
            raise ConfigError(
                f"fedpac needs a model with a body and a head, {reason}: use a model of at least two layers"
            )
        matrices = [s.shape for s in head if len(s.shape) >= 2]
        require(bool(matrices), f"head = {module!r} has no weight matrix: give the name of a linear layer")
        return Halves(module, tuple(s.name for s in head), body, classes=matrices[-1][0], width=prod(matrices[0][1:]))

    def ranges(self, layout: Layout) -> Iterator[tuple[int, int]]:
        """Iterate over the positions of the head in the flat vector."""
        return ((s.start, s.stop) for s in layout.of_kind("param") if s.name in self.head)

    def head_of(self, layout: Layout, model: Tensor) -> Tensor:
        """Copy the head of a model."""
        return torch.cat([model[a:b] for a, b in self.ranges(layout)])

    def with_head(self, layout: Layout, model: Tensor, head: Tensor) -> Tensor:
        """Return a copy of the model with this head and the model's BatchNorm statistics."""
        new, used = new_vector(model).copy_(model), 0
        for a, b in self.ranges(layout):
            new[a:b] = head[used : used + b - a]
            used += b - a
        return new


@dataclass(frozen=True)
class HeadThenBody(LocalRule):
    """Train the head alone, then the body alone with features aligned to the prototypes of their classes."""

    split: Halves
    lam: float
    head_epochs: int
    head_lr: float

    @property
    def head(self) -> str:
        return self.split.module

    def phases(self, work: LocalWork) -> tuple[Phase, ...]:
        head = Phase(epochs=self.head_epochs, lr=self.head_lr, slices=self.split.head)
        return head, Phase(steps=work.steps, epochs=work.epochs, lr=work.lr, slices=self.split.body)

    def begin(self, job: LocalJob) -> dict[str, Tensor]:
        # from the body that all clients were sent, so that their h can be compared
        f, y = self._features(job, job.base)
        n = y.shape[-1]
        n_y, mu, rest = class_means(f, y, self.split.classes)
        p = (n_y / n).unsqueeze(-1)
        # V = (sum_y p_y tr E[f f^T | y] - sum_y p_y^2 ||mu_y||^2) / n, with tr E[f f^T | y] = E[||f - mu_y||^2 | y] +
        # ||mu_y||^2, so that rounding cannot make it negative
        v = (rest.square().sum((-1, -2)) / n + (p * (1 - p) * mu.square()).sum((-1, -2))) / n
        return {"h": (p * mu).flatten(-2), "v": v.unsqueeze(-1)}  # h_y = p_y mu_y

    def loss(self, job: LocalJob, outputs: Tensor, features: Tensor, y: Tensor) -> Tensor:
        if outputs.shape[-1] != self.split.classes:
            sizes = f"the head {self.head!r} has {self.split.classes} outputs, the model {outputs.shape[-1]}"
            raise ConfigError(f"fedpac: {sizes}: it is not the last layer; set `head`")
        loss = cross_entropy(outputs, y)
        if "prototypes" not in job.extras:  # the first round
            return loss
        f, c, known = features.flatten(1), job.extras["prototypes"][y], job.extras["known"][y].unsqueeze(-1) > 0
        # the features do not depend on the head, so the second term has no gradient in its phase
        return loss + self.lam * mse_loss(f, torch.where(known, c, f.detach()))  # CE + lambda MSE(f(x), c_y)

    def end(
        self, job: LocalJob, local: Tensor, carry: dict[str, Tensor]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        n_y, mu, _ = class_means(*self._features(job, local), self.split.classes)
        return {**carry, "means": mu.flatten(-2), "counts": n_y}, {}

    def uploads(self, layout: Layout) -> Mapping[str, int]:
        classes, entries = self.split.classes, self.split.classes * self.split.width
        return {"h": entries, "v": 1, "means": entries, "counts": classes}

    def _features(self, job: LocalJob, model: Tensor) -> tuple[Tensor, Tensor]:
        """Return one vector of features and one label per example, or raise an error if the head needs others."""
        if job.features is None:
            raise ConfigError("fedpac needs the features of its clients, and this trainer provides none")
        f, y = job.features(model)
        # one label per example, not one per position
        labels = not y.is_floating_point() and y.dim() == model.dim() < f.dim()
        flat = f.flatten(y.dim()) if labels else f  # the input of a convolution, or of a head that flattens it
        if not labels or flat.shape != (*y.shape, self.split.width):
            shapes = f"features {tuple(f.shape)} with labels {tuple(y.shape)} {y.dtype}"
            raise ConfigError(
                f"fedpac: {shapes}: the head needs one vector of {self.split.width} per class label; set `head`"
            )
        return flat, y


def class_means(f: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return n_y [..., classes], mu_y [..., classes, width] and f - mu_y; the mean of no examples is zero."""
    of_class = (y.unsqueeze(-1) == torch.arange(classes, device=y.device)).to(f.dtype)
    n_y = of_class.sum(-2)
    mu = of_class.mT @ f / n_y.clamp(min=1).unsqueeze(-1)
    return n_y, mu, f - of_class @ mu
