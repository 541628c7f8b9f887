"""What travels, in bytes: models and extras, as a network would count them.

A method whose clients keep the model they sent or were sent last (class attribute `clients_keep`) pays nothing for
sending it to them again; one that shares nothing (mode "alone") pays nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from offbeat.core.protocol import Dispatch, Layout, LocalWork
from offbeat.core.strategy_contract import Contract


@dataclass(slots=True)
class Traffic:
    model_bytes: int
    silent: bool = False
    keeps: bool = False
    kept: dict[int, Tensor] = field(default_factory=dict)  # client -> what it has, if clients keep it

    @classmethod
    def of(cls, contract: Contract, model: Tensor) -> Traffic:
        return cls(model.nbytes, silent=not contract.shares, keeps=contract.clients_keep)

    def down(self, action: Dispatch) -> int:
        if self.silent:
            return 0
        extras = action.work.extras
        size = _size(extras) if extras else 0
        return size if self.keeps and self._there(action.client, action.model) else size + self.model_bytes

    def up(self, client: int, local: Tensor, extras: Mapping[str, Tensor]) -> int:
        if self.silent:
            return 0
        if self.keeps:
            self.kept[client] = local
        return self.model_bytes + _size(extras) if extras else self.model_bytes

    def _there(self, client: int, model: Tensor) -> bool:
        """Does the client have what it is sent? It does from now on."""
        held = self.kept.get(client)
        self.kept[client] = model
        return held is not None and (held is model or torch.equal(held, model))

    def wasted(self) -> int:
        """An upload that came late, twice or was refused; what extras it had is not known."""
        return 0 if self.silent else self.model_bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes that go down with a piece of work and come up for it, for a world whose network takes time.

    Unlike the count above it takes every model as sent: what a client keeps is not known when its time is drawn.
    """

    model_bytes: int
    itemsize: int
    layout: Layout
    silent: bool = False

    @classmethod
    def of(cls, contract: Contract, model: Tensor, layout: Layout) -> Payload:
        return cls(model.nbytes, model.element_size(), layout, not contract.shares)

    def __call__(self, work: LocalWork) -> tuple[int, int]:
        if self.silent:
            return 0, 0
        promised = {} if work.rule is None else work.rule.uploads(self.layout)
        return self.model_bytes + _size(work.extras), self.model_bytes + self.itemsize * sum(promised.values())


def _size(extras: Mapping[str, Tensor]) -> int:
    return sum(t.nbytes for t in extras.values())
