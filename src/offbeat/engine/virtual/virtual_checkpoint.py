"""Checkpoints of a run in virtual time; one is read completely before anything of the run changes."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.snapshot import Get, Put, Tree, expect_type, pack, unpack
from offbeat.engine.coordinator import Coordinator, CoordinatorState
from offbeat.engine.gate import Verdict
from offbeat.engine.model_evaluation import EvaluationSchedule, EvaluationState
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import TraceDigest
from offbeat.engine.virtual.event_heap import Clock


@dataclass(frozen=True)
class VirtualCheckpoint:
    """A checkpoint that matches the run and its trace."""

    coordinator: CoordinatorState
    evaluation: EvaluationState
    clock: Clock
    verdicts: dict[int, Verdict]
    rows: int
    digest: TraceDigest


def pack_checkpoint(
    run: Coordinator, trace: Trace, clock: Clock, evaluation: EvaluationSchedule, verdicts: dict[int, Verdict], put: Put
) -> Tree:
    """Return the checkpoint as a tree.

    Jobs in flight are stored and computed again after a resume. Results computed ahead of time are stored too, because
    not every worker repeats them bit for bit.
    """
    return {
        "rows": trace.seq,
        "digest": trace.digest_so_far.as_dict(),
        "clock": clock.save(put),
        "evaluation": evaluation.save(put),
        "verdicts": pack(verdicts, put),
        **run.save(put),
    }


def read_checkpoint(run: Coordinator, trace: Trace, tree: Tree, get: Get) -> VirtualCheckpoint:
    """Read a checkpoint and check that the run and its trace match it."""
    rows = expect_type(int, tree["rows"], "rows")
    return VirtualCheckpoint(
        coordinator=run.read(tree, get),
        evaluation=expect_type(EvaluationState, unpack(tree["evaluation"], get), "evaluation"),
        clock=Clock.restored(tree["clock"], get),
        verdicts=expect_type(dict, unpack(tree["verdicts"], get), "verdicts"),
        rows=rows,
        digest=trace.verify(rows, tree["digest"]),
    )
