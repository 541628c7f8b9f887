"""A checkpoint of a run in virtual time, made, and read whole before anything of the run is touched."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.snapshot import Get, Put, Tree, expect, pack, unpack
from offbeat.engine.checkpoint_formats import upgraded
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.coordinator_state import Conversation
from offbeat.engine.evaluation_schedule import Evaluation, Measured
from offbeat.engine.gate import Verdict
from offbeat.engine.trace import Trace
from offbeat.engine.trace_digest import Tally
from offbeat.engine.virtual.event_heap import Clock


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
