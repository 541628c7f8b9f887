"""What a live run needs to come back after its server died: its checkpoint, made and read."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.snapshot import Get, Put, Tree, expect, pack, unpack
from offbeat.engine.coordinator_state import Conversation
from offbeat.engine.evaluation_schedule import Measured
from offbeat.engine.live.live_state import Facts
from offbeat.engine.live.site_scores import Held
from offbeat.engine.trace_digest import Tally
from offbeat.engine.virtual.event_heap import Clock


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


def tree(facts: Facts, put: Put, record: int) -> Tree:
    return {
        "trace": facts.trace.seq,
        "rows": facts.trace.tally.plain(),
        "clock": facts.clock.save(put),
        "evaluation": facts.evaluation.save(put),
        "longest": pack(facts.sites.longest, put),
        "accepted": pack(facts.sites.accepted, put),
        "expired": pack(facts.sites.expired, put),
        "opinions": pack(facts.opinions.held, put),
        "record": record,
        **facts.coordinator.save(put),
    }


def read(facts: Facts, stored: Tree, get: Get) -> Saved:
    seq = expect(int, stored["trace"], "trace")
    return Saved(
        conversation=facts.coordinator.read(stored, get),
        measured=expect(Measured, unpack(stored["evaluation"], get), "evaluation"),
        clock=Clock.restored(stored["clock"], get),
        longest=expect(dict, unpack(stored["longest"], get), "longest"),
        accepted=expect(dict, unpack(stored["accepted"], get), "accepted"),
        expired=expect(dict, unpack(stored["expired"], get), "expired"),
        opinions=expect(Held, unpack(stored["opinions"], get), "opinions"),
        record=expect(int, stored["record"], "record"),
        seq=seq,
        tally=facts.trace.check(seq, stored.get("rows")),
    )


def put_back(facts: Facts, saved: Saved) -> None:
    facts.coordinator.restore(saved.conversation)
    facts.evaluation.restore(saved.measured)
    facts.clock, facts.started = saved.clock, True
    facts.sites.longest, facts.sites.accepted, facts.sites.expired = saved.longest, saved.accepted, saved.expired
    facts.opinions.held = saved.opinions
    facts.trace.cut(saved.seq, saved.tally)
