"""How much an update weighed, as far as a strategy's rule says so from what the trace holds: its staleness, its
examples, and who went into the same version. What would have to be guessed is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedprox import FedProx
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.results.client_timeline import Job

AVERAGING = (FedAvg, FedProx, FedAvgM, FedAdam)  # by examples
TOGETHER = (*AVERAGING, FedBuff, CA2FL, FedPSA)  # every update since the version before is in the next


@dataclass(frozen=True)
class Weight:
    """A number, what it is, and how it comes about."""

    name: str
    value: float
    text: str


def of(strategy: Any, job: Job) -> list[Weight]:
    """Of an update that arrived and was not rejected; empty where the rule does not tell."""
    u, others = job.staleness, job.others if job.heard_with == len(job.others) else None
    if u is None or job.outcome != "arrive":
        return []
    if isinstance(strategy, AVERAGING):
        return _by_examples(job, others) if job.committed is not None and others is not None else []
    made, discount = [], _discount(strategy, u)
    if discount is not None:
        made.append(Weight("discount", discount, f"s({u}) = {discount:.3g} of a fresh update's"))
    if isinstance(strategy, FedAsync) and discount is not None:
        alpha, unknown = strategy.alpha * discount, strategy.client_weight
        of_what = "of the new model is its own" if strategy.mode == "mix" else "times its delta was added"
        left = f", times its share of all clients ({unknown}), which the trace does not hold" if unknown else ""
        made.append(
            Weight("alpha", alpha, f"α s({u}) = {strategy.alpha:g} × {discount:.3g} = {alpha:.3g}{left}: {of_what}")
        )
    if isinstance(strategy, FedBuff) and discount is not None and others and not strategy.client_weight:
        total = discount + sum(_discount(strategy, other.staleness) or 0.0 for other in others)
        share = discount / total if total else 0.0
        made.append(Weight("share", share, f"{share:.0%} of the weight of the {1 + len(others)} updates in the buffer"))
    return made


def _discount(strategy: Any, u: int) -> float | None:
    law = getattr(strategy, "staleness", None)
    return float(law(u)) if callable(law) else None


def _by_examples(job: Job, others: Sequence[Any]) -> list[Weight]:
    mine = job.examples or 0
    total = mine + sum(other.examples for other in others)
    if not total:
        return []
    text = f"{mine} of {total} examples: {mine / total:.0%} of the average"
    return [Weight("share", mine / total, text)]
