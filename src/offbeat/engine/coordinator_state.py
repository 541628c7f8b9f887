"""A conversation with a strategy as a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from offbeat.core.errors import CheckpointError, RunError
from offbeat.core.ledger import Ledger
from offbeat.core.protocol import Strategy, World
from offbeat.core.snapshot import Get, Put, Tree, described, expect, pack, pack_state, unpack, unpack_state
from offbeat.engine.divergence import Footing
from offbeat.engine.progress import Progress


@dataclass(frozen=True)
class Conversation:
    """What a coordinator has to go on with."""

    ledger: Ledger
    progress: Progress
    footing: Footing
    model: Tensor
    memories: dict[int, Mapping[str, Tensor]]
    kept: dict[int, Tensor]
    claimed: dict[int, int] | None
    state: Any

    def save(self, strategy: Strategy, put: Put) -> Tree:
        return {
            "strategy": repr(strategy),
            **self.ledger.save(put),
            "progress": pack(self.progress, put),
            "footing": pack(self.footing, put),
            "model": pack(self.model, put),
            "memories": pack(self.memories, put),
            "kept": pack(self.kept, put),
            "claimed": pack(self.claimed, put),
            "state": pack_state(self.state, put),
        }

    def read(self, tree: Tree, get: Get, strategy: Strategy, world: World) -> Conversation:
        """What was saved, if it is of this strategy in this world; here nothing changes."""
        if not described(strategy, tree["strategy"]):
            raise RunError(f"the checkpoint is of {tree['strategy']}, not of {strategy!r}")
        model = unpack(tree["model"], get)
        if not isinstance(model, Tensor) or model.shape != self.model.shape or model.dtype != self.model.dtype:
            raise CheckpointError("it does not hold what it should: its model has another shape")
        ledger = self.ledger.restored(tree, get)
        progress = expect(Progress, unpack(tree["progress"], get), "progress")
        known = "footing" in tree  # before format 2 models were not looked at
        footing = unpack(tree["footing"], get) if known else Footing.on(model, ledger.version, progress.updates)
        return Conversation(
            ledger=ledger,
            progress=progress,
            footing=expect(Footing, footing, "footing"),
            model=model,
            memories=expect(dict, unpack(tree["memories"], get), "memories"),
            kept=expect(dict, unpack(tree["kept"], get), "kept"),
            claimed=unpack(tree.get("claimed"), get),
            state=unpack_state(strategy.init(world), tree["state"], get),
        )
