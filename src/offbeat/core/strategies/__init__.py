"""All strategies, one paper per file with its client and server half. REGISTRY maps names to classes."""

from __future__ import annotations

from offbeat.core.strategies.aso_fed import AsoFed
from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fed_ogd import FedOGD
from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedat import FedAT
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedcompass import FedCompass
from offbeat.core.strategies.fedfa import FedFa
from offbeat.core.strategies.fedpac import FedPAC
from offbeat.core.strategies.fedprox import FedProx
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.core.strategies.flanp import FLANP
from offbeat.core.strategies.gradma import GradMA
from offbeat.core.strategies.local import Local
from offbeat.core.strategies.mifa import Mifa
from offbeat.core.strategies.orthofl import OrthoFL
from offbeat.core.strategies.pooled import Global
from offbeat.core.strategies.safa import Safa

__all__ = [
    "REGISTRY", "AsoFed", "CA2FL", "FedOGD", "FedAdam", "FedAsync", "FedAT", "FedAvg", "FedAvgM", "FedBuff",
    "FedCompass", "FedFa", "FedPAC", "FedProx", "FedPSA", "FLANP", "GradMA", "Local", "Mifa", "OrthoFL", "Global",
    "Safa",
]  # fmt: skip

REGISTRY: dict[str, type] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedadam": FedAdam,
    "fedavgm": FedAvgM,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "ca2fl": CA2FL,
    "fedat": FedAT,
    "fedfa": FedFa,
    "fedpac": FedPAC,
    "safa": Safa,
    "mifa": Mifa,
    "flanp": FLANP,
    "gradma": GradMA,
    "local": Local,
    "global": Global,
    "orthofl": OrthoFL,
    "aso_fed": AsoFed,
    "fedpsa": FedPSA,
    "fed_ogd": FedOGD,
    "fedcompass": FedCompass,
}
