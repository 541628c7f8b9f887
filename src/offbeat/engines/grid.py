"""The evaluation grid: when the model is judged and the clients are surveyed, and the target that may end the run."""

from __future__ import annotations

from math import ceil, isfinite
from typing import TYPE_CHECKING

from offbeat.engines import finite
from offbeat.engines.clock import EVALUATE, NOBODY
from offbeat.engines.holdings import bytes_held

if TYPE_CHECKING:
    from offbeat.engines.virtual import VirtualEngine


def start(engine: VirtualEngine) -> None:
    engine.clock.push(0.0, EVALUATE, NOBODY)


def step(engine: VirtualEngine) -> None:
    """A point of the grid: evaluate, survey if it is time for that, and set the next point."""
    p = engine.progress
    if not finite.model_holds(engine):
        return
    _evaluate(engine)
    if engine.survey_every and p.evaluations % engine.survey_every == 0:
        _survey(engine)
    p.evaluations = max(p.evaluations + 1, _before_the_next_event(engine))
    engine.clock.push(_point(engine, p.evaluations), EVALUATE, NOBODY)


def finish(engine: VirtualEngine) -> None:
    """The end of a run counts as a point, wherever it lies."""
    finite.model_holds(engine)
    if engine.progress.evaluated != (engine.clock.now, engine.ledger.version):
        _evaluate(engine)
    _survey(engine)


def _before_the_next_event(engine: VirtualEngine) -> int:
    """The last point before anything can change, where nobody works and no end in time is set: an absence may be endless."""
    if engine.until.seconds is not None or engine.ledger.open or not isfinite(engine.every):
        return 0
    at = engine.clock.upcoming() / engine.every
    return ceil(at) - 1 if isfinite(at) else 0


def _point(engine: VirtualEngine, number: int) -> float:
    """The last one is the end itself, even where rounding would put it just beyond."""
    at, end = number * engine.every, engine.until.seconds
    return end if end is not None and abs(at - end) <= 1e-9 * end else at


def _evaluate(engine: VirtualEngine) -> None:
    p, now, version = engine.progress, engine.clock.now, engine.ledger.version
    p.metrics = engine.judge(engine.state, engine.model, engine.ledger.everyone(), engine.own_statistics())
    if not engine.traffic.silent:  # alone, there is no server
        p.server_bytes = max(p.server_bytes, bytes_held(engine.state))
    p.evaluated = (now, version)
    engine.trace.metrics(now, version, p.updates, p.metrics)
    target = engine.until.target
    if target is not None and engine.reason is None and target.reached(p.metrics):
        engine.reason = "target"
    if engine.watch is not None:
        engine.watch(engine)


def _survey(engine: VirtualEngine) -> None:
    """How good the model is for each client, on its own examples."""
    p, now, version = engine.progress, engine.clock.now, engine.ledger.version
    if engine.survey is None:
        return
    engine.trace.set_facts(engine.survey.facts)
    if p.surveyed == (now, version):
        return
    fallen = finite.ended(engine.reason)  # then a state is left that personal models cannot be trusted to come from
    own = engine.judge.model_of(engine.state, engine.model, engine.own_statistics())
    clients, groups = engine.survey((lambda client: engine.model) if fallen else own)
    p.surveyed = (now, version)
    engine.trace.clients(now, version, clients)
    engine.trace.metrics(now, version, p.updates, groups)
