"""One paper per file, client half and server half together. REGISTRY names them all."""

from __future__ import annotations

from offbeat.core.errors import unknown
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff

REGISTRY: dict[str, type] = {"fedavg": FedAvg, "fedasync": FedAsync, "fedbuff": FedBuff}


def find(name: str) -> type:
    """The strategy class of that name."""
    if name not in REGISTRY:
        raise unknown("strategy", name, REGISTRY)
    return REGISTRY[name]
