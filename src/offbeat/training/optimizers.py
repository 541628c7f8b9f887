"""Local optimizers on flat vectors, with the results of torch.optim.

A step on one flat vector takes two or three operations, independent of the number of parameters. All arithmetic is
elementwise, so vectors may have leading client dimensions. Directions are never changed in place, because the rule
that returned one may still use it.
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

from torch import Tensor

from offbeat.core.jobs import Rate


class LocalSGD:
    __slots__ = ("_momentum", "_velocity", "_weight_decay")

    def __init__(self, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._velocity: Tensor | None = None

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        if self._weight_decay:
            d = d.add(w, alpha=self._weight_decay)
        if self._momentum:
            if self._velocity is None:
                self._velocity = d.clone()  # as in torch: the first velocity is the direction itself
            else:
                self._velocity.mul_(self._momentum).add_(d)
            d = self._velocity
        if isinstance(lr, Tensor):
            w.addcmul_(d, lr, value=-1)
        else:
            w.add_(d, alpha=-lr)


class LocalAdam:
    __slots__ = ("_beta1", "_beta2", "_eps", "_mean", "_square", "_step", "_weight_decay")
    decoupled: ClassVar[bool] = False  # whether weight decay changes w directly instead of the gradient

    def __init__(
        self, weight_decay: float = 0.0, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        self._weight_decay = weight_decay
        self._beta1, self._beta2, self._eps = beta1, beta2, eps
        self._step = 0
        self._mean: Tensor | None = None
        self._square: Tensor | None = None

    def step(self, w: Tensor, d: Tensor, lr: Rate) -> None:
        if self._mean is None or self._square is None:
            self._mean, self._square = d.new_zeros(d.shape), d.new_zeros(d.shape)
        self._step += 1
        if self._weight_decay and self.decoupled:
            w.mul_(1 - lr * self._weight_decay)
        elif self._weight_decay:
            d = d.add(w, alpha=self._weight_decay)
        self._mean.lerp_(d, 1 - self._beta1)
        self._square.mul_(self._beta2).addcmul_(d, d, value=1 - self._beta2)
        unbias = 1 - self._beta1**self._step
        unbias_square = sqrt(1 - self._beta2**self._step)
        deviation = self._square.sqrt().div_(unbias_square).add_(self._eps)
        if isinstance(lr, Tensor):
            w.addcdiv_(self._mean * lr, deviation, value=-1 / unbias)
        else:
            w.addcdiv_(self._mean, deviation, value=-lr / unbias)


class LocalAdamW(LocalAdam):
    __slots__ = ()
    decoupled: ClassVar[bool] = True
