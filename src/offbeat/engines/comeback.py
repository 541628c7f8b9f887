"""What a live run needs to come back after its server died: its checkpoint, made and read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offbeat.core.snapshot import Get, Put, Tree, expect, pack, unpack
from offbeat.engines.clock import Clock
from offbeat.engines.conversation import Conversation
from offbeat.engines.evaluation import Measured
from offbeat.engines.opinions import Held
from offbeat.engines.tally import Tally

if TYPE_CHECKING:
    from offbeat.engines.live import LiveEngine


@dataclass(frozen=True)
class Saved:
    """A checkpoint, read and found to be of this run."""

    conversation: Conversation
    measured: Measured
    clock: Clock
    longest: dict[int, float]
    accepted: dict[int, int]
    expired: dict[int, tuple[int, float]]
    opinions: Held
    record: int  # the file of the record that holds what followed
    seq: int
    tally: Tally


def tree(engine: LiveEngine, put: Put, record: int) -> Tree:
    return {
        "trace": engine.trace.seq,
        "rows": engine.trace.tally.plain(),
        "clock": engine.clock.save(put),
        "evaluation": engine.evaluation.save(put),
        "longest": pack(engine.sites.longest, put),
        "accepted": pack(engine.sites.accepted, put),
        "expired": pack(engine.sites.expired, put),
        "opinions": pack(engine.opinions.held, put),
        "record": record,
        **engine.coordinator.save(put),
    }


def read(engine: LiveEngine, stored: Tree, get: Get) -> Saved:
    seq = expect(int, stored["trace"], "trace")
    return Saved(
        conversation=engine.coordinator.read(stored, get),
        measured=expect(Measured, unpack(stored["evaluation"], get), "evaluation"),
        clock=Clock.restored(stored["clock"], get),
        longest=expect(dict, unpack(stored["longest"], get), "longest"),
        accepted=expect(dict, unpack(stored["accepted"], get), "accepted"),
        expired=expect(dict, unpack(stored["expired"], get), "expired"),
        opinions=expect(Held, unpack(stored["opinions"], get), "opinions"),
        record=expect(int, stored["record"], "record"),
        seq=seq,
        tally=engine.trace.check(seq, stored.get("rows")),
    )
