"""When the model is judged and the clients are surveyed: on a grid of virtual time, the same for every method, and
at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf, isfinite

from offbeat.core.snapshot import Put, Tree, pack
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.model_evaluation import ClientSurvey, Judge
from offbeat.engine.state_size import bytes_held
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until


@dataclass(slots=True)
class Measured:
    """What was found so far; times are (virtual time, version)."""

    points: int = 0
    last: tuple[float, int] = (-1.0, -1)
    surveyed: tuple[float, int] = (-1.0, -1)
    metrics: dict[str, float] = field(default_factory=dict)
    server_bytes: int = 0  # the most a strategy's tensors took, looked at on the grid


class Evaluation:
    def __init__(
        self,
        judge: Judge,
        until: Until,
        trace: Trace,
        *,
        every: float = inf,  # virtual seconds between points
        survey: ClientSurvey | None = None,  # of the clients, each on its own examples: at the end, and
        survey_every: int = 0,  # at every so many points
    ) -> None:
        self.measured = Measured()
        self._judge, self._until, self._trace = judge, until, trace
        self._every, self._survey, self._survey_every = every, survey, survey_every

    # ------------------------------------------------------------ the grid

    def point(self, now: float, run: Coordinator, upcoming: float) -> float:
        """A point of the grid; returns the time of the next one. `upcoming` is when anything else is due."""
        measured = self.measured
        self._look(now, run)
        if self._survey_every and measured.points % self._survey_every == 0:
            self._ask_clients(now, run)
        measured.points = max(measured.points + 1, self._before(upcoming, run))
        return self._at(measured.points)

    def after(self, now: float) -> float:
        """The time of the next point that has not passed: where time does not wait, some may have."""
        while isfinite(self._every) and self._at(self.measured.points) <= now:
            self.measured.points += 1
        return self._at(self.measured.points)

    def finish(self, now: float, run: Coordinator) -> None:
        """The end of a run counts as a point, wherever it lies."""
        if self.measured.last != (now, run.ledger.version):
            self._look(now, run)
        self._ask_clients(now, run)

    def _before(self, upcoming: float, run: Coordinator) -> int:
        """The last point before anything can change, where nobody works and no end in time is set: an absence may be
        endless.
        """
        if self._until.seconds is not None or run.ledger.open or not isfinite(self._every):
            return 0
        at = upcoming / self._every
        return ceil(at) - 1 if isfinite(at) else 0

    def _at(self, point: int) -> float:
        """The last one is the end itself, even where rounding would put it just beyond."""
        at, end = point * self._every, self._until.seconds
        return end if end is not None and abs(at - end) <= 1e-9 * end else at

    # ------------------------------------------------------------ what is measured

    def _look(self, now: float, run: Coordinator) -> None:
        measured, version = self.measured, run.ledger.version
        # of a run that fell back a state is left that personal models cannot be trusted to come from
        if run.fallen:
            measured.metrics = self._judge.of_model(run.model)
        else:
            measured.metrics = self._judge(run.state, run.model, run.ledger.everyone(), run.own_statistics())
        if run.contract.shares:  # alone, there is no server
            measured.server_bytes = max(measured.server_bytes, bytes_held(run.state))
        measured.last = (now, version)
        self._trace.metrics(now, version, run.progress.updates, measured.metrics)
        target = self._until.target
        if target is not None and target.reached(measured.metrics):
            run.end("target")

    def _ask_clients(self, now: float, run: Coordinator) -> None:
        """How good the model is for each client, on its own examples."""
        if self._survey is None:
            return
        self._trace.set_facts(self._survey.facts)
        version = run.ledger.version
        if self.measured.surveyed == (now, version):
            return
        own, model = self._judge.model_of(run.state, run.model, run.own_statistics()), run.model
        clients, groups = self._survey((lambda client: model) if run.fallen else own)
        self.measured.surveyed = (now, version)
        self._trace.clients(now, version, clients)
        self._trace.metrics(now, version, run.progress.updates, groups)

    # ------------------------------------------------------------ save and restore

    def save(self, put: Put) -> Tree:
        return pack(self.measured, put)

    def restore(self, measured: Measured) -> None:
        self.measured = measured
