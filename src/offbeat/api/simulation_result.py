"""`Simulation`: the result of `simulate`, with its metrics, curves, model and trace."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save
from torch import Tensor

from offbeat.api import arguments
from offbeat.core.errors import ConfigError, RunError
from offbeat.engine import Outcome, Trace, write_atomically
from offbeat.experiment import build
from offbeat.experiment.scripted import ScriptedRun
from offbeat.experiment.spec import Experiment
from offbeat.metrics import Curve, Summary, metric_names, read_curve
from offbeat.workers import INLINE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)  # __repr__ is a summary for the prompt, without tensors
class Simulation:
    """The result of `simulate`: print it, plot it, save it, or take the model."""

    given: ScriptedRun
    outcome: Outcome
    summary: Summary
    trace: Trace

    @property
    def experiment(self) -> Experiment:
        """Return the experiment that was run."""
        return self.given.experiment

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the final metrics."""
        return self.summary.metrics

    @property
    def by_client(self) -> dict[str | int, float]:
        """Return the main metric of each client, on its own test examples or else on its training examples."""
        return {self.given.datasets.name(client): value for client, value in self.summary.by_client.items()}

    def curve(self, metric: str) -> Curve:
        """Return a metric at each evaluation."""
        measured = metric_names(self._db)
        if metric not in measured:
            raise ConfigError(f"{metric!r} was not measured; {', '.join(measured)} were")
        return read_curve(self._db, metric)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the final model, for load_state_dict of your module."""
        return build.state_dict(self.given.module, self.outcome.model)

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure:
        """Plot a metric against virtual time as a matplotlib figure, and save it if a path is given."""
        from matplotlib.figure import Figure

        name = metric or self.summary.headline
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
        """Write the folder that `out=` would have created: the model, the trace, and what `repeat` needs."""
        from offbeat.experiment.run import create_run, write_final_checksums

        worker = str(self.summary.worker or INLINE).split(" (")[0].split(", then ")[-1]
        memory = self.summary.client_memory
        path = arguments.check_folder(folder)
        run = create_run(path, self.experiment, current_command(), worker=worker, memory=memory, script=self.given)
        try:
            self._copy_trace(run.trace_file)
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot write to {path}: {getattr(error, 'strerror', None) or error}") from None
        model = save(self.state_dict())
        write_final_checksums(path, self.trace, model)
        write_atomically(run.model_file, model)  # written last: the model marks the run as complete
        return path

    def _copy_trace(self, path: Path) -> None:
        """Write the trace to a file that is complete or absent."""
        partial = path.with_name(f"{path.name}.tmp")
        with contextlib.closing(sqlite3.connect(partial)) as target:
            self._db.backup(target)
        os.replace(partial, path)

    @property
    def _db(self) -> sqlite3.Connection:
        """Return the database with all rows of the trace."""
        self.trace.flush()
        return self.trace.db

    def __repr__(self) -> str:
        """Summarize metrics, updates and staleness for the prompt."""
        s = self.summary
        names = [name for name in ("loss", s.headline) if name in s.metrics]
        metrics = ", ".join(f"{name} {s.metrics[name]:.4f}" for name in names)
        averaged = " (means over clients, each on its own test)" if s.evaluated == "clients" else ""
        warnings = "".join(f"\n  warning: {line}" for line in s.warnings)
        return (
            f"{type(self.experiment.strategy).__name__}: {metrics}{averaged} after {s.seconds:.0f} virtual seconds\n"
            f"  {s.updates} updates, {s.versions} versions, staleness {s.staleness_mean:.1f} on average, at most "
            f"{s.staleness_max}\n"
            f"  clients idle {s.idle_share:.0%} of the time; refused {sum(s.refused.values())}, rejected "
            f"{s.rejected}, lost {s.lost}{warnings}"
        )


def current_command() -> str:
    """Return the command that runs the current script."""
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) is None or hasattr(sys, "ps1"):
        return "# called from a prompt or a notebook"
    return shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]])
