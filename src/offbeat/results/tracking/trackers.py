"""TensorBoard, MLflow and Weights & Biases: where what a run tells can be sent.

The horizontal axis is the number of accepted updates. The time of a point is the run's own: virtual seconds since its
start (TensorBoard's and MLflow's relative time); W&B has them as a value.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from offbeat.results.tracking.tracked_points import Point

PROJECT = "offbeat"  # of W&B, and the experiment of MLflow, unless somebody says otherwise
LONGEST = 500  # letters of a setting: MLflow takes no more from an older server

Settings = Mapping[str, bool | int | float | str]


@dataclass(frozen=True)
class About:
    """Of the run."""

    name: str
    group: str | None  # the comparison it is part of
    folder: Path
    settings: Settings


class Sink(Protocol):
    name: str  # under which it goes on after a resume

    def write(self, points: Sequence[Point]) -> None: ...

    def close(self, summary: Mapping[str, float] | None) -> None:
        """None: the run has not come to its end."""


class TensorBoard:
    """Event files in FOLDER/NAME, or in the run folder."""

    package = "tensorboard"

    def __init__(self, where: str | None, about: About, name: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = about.folder / "tensorboard" if where is None else Path(where) / about.name
        self.name, self._settings = str(place), about.settings
        self._writer: Any = SummaryWriter(str(place), filename_suffix=".offbeat")

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            for key, value in point.values.items():
                self._writer.add_scalar(key, value, point.updates, point.now)
        self._writer.flush()

    def close(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            from torch.utils.tensorboard.summary import hparams

            # what add_hparams does, but into the same file: that would show every run twice
            values = {f"summary/{key}": value for key, value in summary.items()}
            for part in hparams(dict(self._settings), values):
                self._writer.file_writer.add_summary(part)
            for key, value in values.items():
                self._writer.add_scalar(key, value)
        self._writer.close()


class MLflow:
    """A tracking server (its URI) or a folder, in which mlflow.db is made; else where MLflow itself would write."""

    package = "mlflow"

    def __init__(self, where: str | None, about: About, name: str | None) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client: Any = MlflowClient(tracking_uri=_store(where))
        if name is None:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            known = self._client.get_experiment_by_name(title)
            home = self._client.create_experiment(title) if known is None else known.experiment_id
            tags = {"offbeat.folder": str(about.folder), **({"offbeat.group": about.group} if about.group else {})}
            self.name = self._client.create_run(home, run_name=about.name, tags=tags).info.run_id
            params = [Param(_plain(key), str(value)[:LONGEST]) for key, value in about.settings.items()]
            for some in _batches(params, 100):
                self._client.log_batch(self.name, params=some)
        else:
            self.name = name
            self._client.update_run(name, status="RUNNING")

    def write(self, points: Sequence[Point]) -> None:
        found = (
            self._metric(_plain(key), value, round(1000 * point.now), point.updates)
            for point in points
            for key, value in point.values.items()
        )
        self._log(found)

    def _log(self, metrics: Iterable[Any]) -> None:
        for some in _batches(metrics, 1000):
            self._client.log_batch(self.name, metrics=some)

    def close(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            self._log([self._metric(_plain(f"summary/{key}"), value, 0, 0) for key, value in summary.items()])
        self._client.set_terminated(self.name, "KILLED" if summary is None else "FINISHED")


class WandB:
    """A project, or ENTITY/PROJECT; files beside it lie in the run folder."""

    package = "wandb"

    def __init__(self, where: str | None, about: About, name: str | None) -> None:
        import wandb

        entity, _, project = (where or PROJECT).rpartition("/")
        self.name = name or uuid.uuid4().hex[:8]
        self._run: Any = wandb.init(
            entity=entity or None,
            project=project,
            id=self.name,
            name=about.name,
            group=about.group,
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(about.folder)),
            config=dict(about.settings),
            reinit="create_new",  # the runs of a comparison go on beside each other
            settings=wandb.Settings(silent=True, console="off", login_timeout=10, init_timeout=60),
        )
        self._run.define_metric("updates")
        self._run.define_metric("*", step_metric="updates")

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({**point.values, "updates": point.updates, "virtual_seconds": point.now})

    def close(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            self._run.summary.update(dict(summary))
        self._run.finish(exit_code=int(summary is None))


SINKS: dict[str, type[TensorBoard] | type[MLflow] | type[WandB]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def _store(where: str | None) -> str | None:
    if where is None or ":" in where:
        return where
    folder = Path(where).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _plain(key: str) -> str:
    """A name with nothing in it that MLflow would refuse."""
    return re.sub(r"[^\w\-. :/]", "_", key)


def _batches(items: Iterable[Any], most: int) -> Iterable[list[Any]]:
    rest = iter(items)
    while some := list(islice(rest, most)):
        yield some
