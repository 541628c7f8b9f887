"""What travels, in bytes: models and extras, as a network would count them.

A method whose clients keep the model they uploaded last (class attribute `clients_keep`) pays nothing for sending it
back to them; one that shares nothing (mode "alone") pays nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offbeat.core.protocol import Dispatch


@dataclass(slots=True)
class Traffic:
    model_bytes: int
    silent: bool = False
    keeps: bool = False
    kept: dict[int, Tensor] = field(default_factory=dict)  # client -> its last upload, if clients keep it

    @classmethod
    def of(cls, strategy: Any, model: Tensor) -> Traffic:
        return cls(model.nbytes, silent=alone(strategy), keeps=getattr(strategy, "clients_keep", False))

    def down(self, action: Dispatch) -> int:
        if self.silent:
            return 0
        held = self.kept.get(action.client) if self.keeps else None
        there = held is not None and (held is action.model or torch.equal(held, action.model))
        return (0 if there else self.model_bytes) + _size(action.work.extras)

    def up(self, client: int, local: Tensor, extras: Mapping[str, Tensor]) -> int:
        if self.silent:
            return 0
        if self.keeps:
            self.kept[client] = local
        return self.model_bytes + _size(extras)

    def late(self) -> int:
        """An upload that nobody waits for any more."""
        return 0 if self.silent else self.model_bytes


def alone(strategy: Any) -> bool:
    """Does the method share nothing?"""
    about = getattr(strategy, "about", None)
    return about is not None and about.mode == "alone"


def _size(extras: Mapping[str, Tensor]) -> int:
    return sum(t.nbytes for t in extras.values()) if extras else 0
