"""The Python door: a simulation on your own model and tensors, in one call."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save
from torch import Tensor, nn

from offbeat.client.data import ClientData
from offbeat.client.evaluation import Evaluator
from offbeat.client.task import Loss, Task
from offbeat.client.training import Training
from offbeat.core.errors import ConfigError, RunError
from offbeat.core.protocol import Strategy
from offbeat.core.strategies import find
from offbeat.engines.checkpoint import write_whole
from offbeat.engines.trace import Trace
from offbeat.engines.until import Until, parse_until
from offbeat.engines.virtual import Outcome
from offbeat.experiment import build, metrics
from offbeat.experiment.config import Experiment
from offbeat.experiment.metrics import Curve, Summary
from offbeat.scenario.delays import Constant, Delays, PerClient

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Simulation:
    """What came out: print it, plot it, save it, take the model."""

    experiment: Experiment
    outcome: Outcome
    summary: Summary
    trace: Trace
    setup: build.Setup

    @property
    def metrics(self) -> Mapping[str, float]:
        """At the end."""
        return self.summary.metrics

    def curve(self, metric: str) -> Curve:
        """A metric on the evaluation grid."""
        measured = metrics.metric_names(self._db)
        if metric not in measured:
            raise ConfigError(f"{metric!r} was not measured; {', '.join(measured)} were")
        return metrics.curve(self._db, metric)

    def state_dict(self) -> dict[str, Tensor]:
        """The final model, for your module's load_state_dict."""
        return self.setup.state_dict(self.outcome.model)

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure:
        """The metric against virtual time, as a matplotlib figure; saved if a path is given."""
        from matplotlib.figure import Figure

        name = metric or metrics.metric_names(self._db)[-1]
        points = self.curve(name)
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axis = figure.subplots()
        axis.plot(points.seconds, points.values)
        axis.set(xlabel="virtual seconds", ylabel=name, title=type(self.experiment.strategy).__name__)
        axis.grid(alpha=0.2)
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure

    def save(self, folder: str | Path) -> Path:
        """A folder with the model (a plain state_dict), the trace and the summary."""
        out = Path(folder)
        if (out / "run.sqlite").exists():
            raise RunError(f"{out} already holds a run: choose another folder")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make {out}: {error.strerror or error}") from None
        write_whole(out / "model.safetensors", save(self.state_dict()))
        write_whole(out / "summary.json", json.dumps(self.summary.plain(), indent=2).encode())
        partial = out / "run.sqlite.tmp"
        target = sqlite3.connect(partial)
        self._db.backup(target)
        target.close()
        shutil.move(partial, out / "run.sqlite")
        return out

    @property
    def _db(self) -> sqlite3.Connection:
        self.trace.flush()
        return self.trace.db

    def __str__(self) -> str:
        s = self.summary
        measured = ", ".join(f"{name} {value:.4f}" for name, value in s.metrics.items())
        return (
            f"{type(self.experiment.strategy).__name__}: {measured} after {s.seconds:.0f} virtual seconds\n"
            f"  {s.updates} updates, {s.versions} versions, staleness {s.staleness_mean:.1f} on average, at most {s.staleness_max}\n"
            f"  clients idle {s.idle_share:.0%} of the time; refused {sum(s.refused.values())}, rejected {s.rejected}, lost {s.lost}"
        )


def simulate(
    model: nn.Module,
    clients: Sequence[Pair] | Mapping[int, Pair],
    strategy: Strategy | str = "fedasync",
    *,
    delays: Delays | float | Sequence[float] = 60.0,
    until: Until | str = "3600s",
    test: Pair | None = None,
    training: Training | None = None,
    loss: Task | Loss | None = None,
    evaluate_every: float | None = None,
    max_norm: float | None = None,
    seed: int = 0,
) -> Simulation:
    """Train `model` on the clients' own tensors in virtual time.

    clients: one (inputs, labels) pair each. strategy: an object, or its name for the defaults. delays: a law from
    offbeat.scenario.delays, seconds a job for all, or for each client. until: '3600s', '500updates', 'acc=0.9,3600s'.
    test: what to evaluate on; without it, the clients' data. loss: a function (outputs, labels) -> scalar; by default
    cross entropy for whole-number labels and squared error for real ones. The model itself is left as it is.
    """
    data = ClientData.own(clients)
    experiment = Experiment(
        name="simulation",
        clients=len(data),
        delays=_delays(delays, len(data)),
        training=training or Training(),
        strategy=find(strategy)() if isinstance(strategy, str) else strategy,
        until=parse_until(until) if isinstance(until, str) else until,
        evaluate_every=evaluate_every,
        max_norm=max_norm,
        seed=seed,
    )
    x, y = test if test is not None else data.pooled()
    evaluator = Evaluator(model, x, y, loss)
    made = build.assemble(model, data, evaluator, experiment, loss)
    engine = build.engine(made, experiment)
    outcome = engine.run()
    engine.trace.set_facts({"server_seconds": outcome.server_seconds, "wall_seconds": nan})
    engine.trace.flush()
    summary = metrics.summarize(engine.trace.db, len(data), experiment.until.target)
    return Simulation(experiment, outcome, summary, engine.trace, made)


def _delays(given: Delays | float | Sequence[float], clients: int) -> Delays:
    if isinstance(given, (int, float)):
        return Constant(mean=float(given))
    if isinstance(given, Sequence):
        if len(given) != clients:
            raise ConfigError(f"{len(given)} delays for {clients} clients: give one number, or one for each client")
        return PerClient(means=tuple(float(s) for s in given))
    return given
