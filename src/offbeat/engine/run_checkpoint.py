"""Checkpoints of virtual and live runs; one is read completely before anything of the run changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offbeat.core.snapshot import Get, Put, Tree, expect_type, pack, unpack
from offbeat.engine.coordinator import Coordinator, CoordinatorState
from offbeat.engine.model_evaluation import EvaluationSchedule, EvaluationState
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import TraceDigest
from offbeat.engine.virtual.event_heap import Clock


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint that matches the run and its trace; `engine_fields` are those that only one engine has."""

    coordinator: CoordinatorState
    evaluation: EvaluationState
    clock: Clock
    engine_fields: dict[str, Tree]
    rows: int
    digest: TraceDigest

    def restore(self, run: Coordinator, trace: Trace, evaluation: EvaluationSchedule) -> None:
        """Continue a run from this checkpoint; the engine takes the clock and its own fields."""
        run.restore(self.coordinator)
        evaluation.state = self.evaluation
        trace.truncate(self.rows, self.digest)


def pack_checkpoint(
    run: Coordinator,
    trace: Trace,
    evaluation: EvaluationSchedule,
    clock: Clock,
    engine_fields: Mapping[str, object],
    put: Put,
) -> Tree:
    """Return the checkpoint of a run as a tree."""
    return {
        "rows": trace.seq,
        "digest": trace.digest_so_far.as_dict(),
        "clock": clock.save(put),
        "evaluation": pack(evaluation.state, put),
        **{name: pack(value, put) for name, value in engine_fields.items()},
        **run.save(put),
    }


def read_checkpoint(
    run: Coordinator, trace: Trace, engine_fields: Mapping[str, type], tree: Tree, get: Get
) -> RunCheckpoint:
    """Read a checkpoint and check that the run and its trace match it; `engine_fields` are names and types."""
    rows = expect_type(int, tree["rows"], "rows")
    return RunCheckpoint(
        coordinator=run.read(tree, get),
        evaluation=expect_type(EvaluationState, unpack(tree["evaluation"], get), "evaluation"),
        clock=Clock.restored(tree["clock"], get),
        engine_fields={name: expect_type(kind, unpack(tree[name], get), name) for name, kind in engine_fields.items()},
        rows=rows,
        digest=trace.verify(rows, tree["digest"]),
    )
