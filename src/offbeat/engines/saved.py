"""A checkpoint of a run in virtual time, made, and read whole before anything of the run is touched."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.snapshot import Get, Put, Tree, expect, pack, unpack
from offbeat.engines.clock import Clock
from offbeat.engines.conversation import Conversation
from offbeat.engines.coordinator import Coordinator
from offbeat.engines.evaluation import Evaluation, Measured
from offbeat.engines.formats import upgraded
from offbeat.engines.gate import Verdict
from offbeat.engines.tally import Tally
from offbeat.engines.trace import Trace


@dataclass(frozen=True)
class Saved:
    """Found to be of this run."""

    conversation: Conversation
    measured: Measured
    clock: Clock
    verdicts: dict[int, Verdict]
    seq: int
    tally: Tally


def tree(
    run: Coordinator, trace: Trace, clock: Clock, evaluation: Evaluation, verdicts: dict[int, Verdict], put: Put
) -> Tree:
    """Jobs in flight are kept as they are and computed again after a resume; results computed ahead of time are kept
    too, since not every worker repeats them bit for bit.
    """
    return {
        "trace": trace.seq,
        "rows": trace.tally.plain(),
        "clock": clock.save(put),
        "evaluation": evaluation.save(put),
        "verdicts": pack(verdicts, put),
        **run.save(put),
    }


def read(run: Coordinator, trace: Trace, stored: Tree, get: Get) -> Saved:
    stored = upgraded(stored)
    seq = expect(int, stored["trace"], "trace")
    return Saved(
        conversation=run.read(stored, get),
        measured=expect(Measured, unpack(stored["evaluation"], get), "evaluation"),
        clock=Clock.restored(stored["clock"], get),
        verdicts=expect(dict, unpack(stored["verdicts"], get), "verdicts"),
        seq=seq,
        tally=trace.check(seq, stored.get("rows")),
    )
