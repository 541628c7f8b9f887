"""Adapters for TensorBoard, MLflow and Weights & Biases.

The step of a point is the number of accepted updates. Its time is the run's own, in virtual seconds since the start:
the relative time of TensorBoard and MLflow, and a value in W&B. The attribute `name` identifies a run after a resume.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

DEFAULT_PROJECT = "offbeat"  # default project of W&B and experiment of MLflow
MAX_PARAM_LENGTH = 500  # letters; older MLflow servers reject longer values

SettingValue = bool | int | float | str
Item = TypeVar("Item")


@dataclass(frozen=True)
class TrackedPoint:
    """The values of one point of the evaluation grid."""

    seq: int  # row of the trace
    now: float  # virtual seconds
    updates: int  # accepted so far
    values: Mapping[str, float]


@dataclass(frozen=True)
class TrackedRunInfo:
    """Name and settings of a run."""

    name: str
    group: str | None  # the comparison it is part of
    folder: Path
    settings: Mapping[str, SettingValue]


class TensorBoard:
    """Write event files into FOLDER/NAME, or into the run folder."""

    package = "tensorboard"

    def __init__(self, where: str | None, info: TrackedRunInfo, name: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = info.folder / "tensorboard" if where is None else Path(where) / info.name
        self.name, self._settings = str(folder), info.settings
        self._writer: Any = SummaryWriter(str(folder), filename_suffix=".offbeat")

    def write(self, points: Sequence[TrackedPoint]) -> None:
        """Write one scalar per value."""
        for point in points:
            for key, value in point.values.items():
                self._writer.add_scalar(key, value, point.updates, point.now)
        self._writer.flush()

    def close(self, summary: Mapping[str, float] | None) -> None:
        """Write the summary, unless the run is unfinished, and close the run."""
        if summary is not None:
            from torch.utils.tensorboard.summary import hparams

            # like add_hparams, but into the same file; add_hparams would show each run twice
            values = {f"summary/{key}": value for key, value in summary.items()}
            for part in hparams(dict(self._settings), values):
                self._writer.file_writer.add_summary(part)
            for key, value in values.items():
                self._writer.add_scalar(key, value)
        self._writer.close()


class MLflow:
    """Log to a server (its URI), to mlflow.db in a folder, or to MLflow's own default."""

    package = "mlflow"

    def __init__(self, where: str | None, info: TrackedRunInfo, name: str | None) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        if where is not None and ":" not in where:
            folder = Path(where).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            where = f"sqlite:///{folder / 'mlflow.db'}"
        self._client: Any = MlflowClient(tracking_uri=where)
        if name is None:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME", DEFAULT_PROJECT)
            existing = self._client.get_experiment_by_name(title)
            experiment = self._client.create_experiment(title) if existing is None else existing.experiment_id
            tags = {"offbeat.folder": str(info.folder), **({"offbeat.group": info.group} if info.group else {})}
            self.name = self._client.create_run(experiment, run_name=info.name, tags=tags).info.run_id
            params = [Param(_mlflow_name(key), str(value)[:MAX_PARAM_LENGTH]) for key, value in info.settings.items()]
            for batch in _batches(params, 100):
                self._client.log_batch(self.name, params=batch)
        else:
            self.name = name
            self._client.update_run(name, status="RUNNING")

    def write(self, points: Sequence[TrackedPoint]) -> None:
        """Log all values of the points as metrics."""
        metrics = (
            self._metric(_mlflow_name(key), value, round(1000 * point.now), point.updates)
            for point in points
            for key, value in point.values.items()
        )
        self._log(metrics)

    def _log(self, metrics: Iterable[Any]) -> None:
        """Send metrics in batches that the server accepts."""
        for batch in _batches(metrics, 1000):
            self._client.log_batch(self.name, metrics=batch)

    def close(self, summary: Mapping[str, float] | None) -> None:
        """Write the summary, unless the run is unfinished, and close the run."""
        if summary is not None:
            self._log([self._metric(_mlflow_name(f"summary/{key}"), value, 0, 0) for key, value in summary.items()])
        self._client.set_terminated(self.name, "KILLED" if summary is None else "FINISHED")


class WandB:
    """Log to PROJECT or ENTITY/PROJECT; local files go to the run folder."""

    package = "wandb"

    def __init__(self, where: str | None, info: TrackedRunInfo, name: str | None) -> None:
        import wandb

        entity, _, project = (where or DEFAULT_PROJECT).rpartition("/")
        self.name = name or uuid.uuid4().hex[:8]
        self._run: Any = wandb.init(
            entity=entity or None,
            project=project,
            id=self.name,
            name=info.name,
            group=info.group,
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(info.folder)),
            config=dict(info.settings),
            reinit="create_new",  # the runs of a comparison are open at the same time
            settings=wandb.Settings(silent=True, console="off", login_timeout=10, init_timeout=60),
        )
        self._run.define_metric("updates")
        self._run.define_metric("*", step_metric="updates")

    def write(self, points: Sequence[TrackedPoint]) -> None:
        """Log one step per point."""
        for point in points:
            self._run.log({**point.values, "updates": point.updates, "virtual_seconds": point.now})

    def close(self, summary: Mapping[str, float] | None) -> None:
        """Write the summary, unless the run is unfinished, and close the run."""
        if summary is not None:
            self._run.summary.update(dict(summary))
        self._run.finish(exit_code=int(summary is None))


Tracker = TensorBoard | MLflow | WandB
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def _mlflow_name(key: str) -> str:
    """Replace the characters that MLflow rejects."""
    return re.sub(r"[^\w\-. :/]", "_", key)


def _batches(items: Iterable[Item], size: int) -> Iterable[list[Item]]:
    """Yield lists of at most `size` items."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
