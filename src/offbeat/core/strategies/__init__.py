"""One paper per file, client half and server half together. REGISTRY names them all."""

from __future__ import annotations

from offbeat.core.errors import unknown
from offbeat.core.strategies.aso_fed import AsoFed
from offbeat.core.strategies.fed_ogd import FedOGD
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedcompass import FedCompass
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.core.strategies.orthofl import OrthoFL

REGISTRY: dict[str, type] = {
    "fedavg": FedAvg,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "orthofl": OrthoFL,
    "aso_fed": AsoFed,
    "fedpsa": FedPSA,
    "fed_ogd": FedOGD,
    "fedcompass": FedCompass,
}


def find(name: str) -> type:
    """The strategy class of that name."""
    if name not in REGISTRY:
        raise unknown("strategy", name, REGISTRY)
    return REGISTRY[name]
