"""A checkpoint of a run in virtual time, read whole before anything of the run is touched."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.engines.clock import Clock
from offbeat.engines.conversation import Conversation
from offbeat.engines.evaluation import Measured
from offbeat.engines.gate import Verdict
from offbeat.engines.tally import Tally


@dataclass(frozen=True)
class Saved:
    """Found to be of this run."""

    conversation: Conversation
    measured: Measured
    clock: Clock
    verdicts: dict[int, Verdict]
    seq: int
    tally: Tally
