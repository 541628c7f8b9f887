"""What has to travel with a model for others to use it: its architecture, how inputs are prepared, its classes, and
which run it came out of. It is noted when a run begins, so that an export needs no data, and goes into the header of
the exported file (`__metadata__` of safetensors: names and texts).

Nothing of it says where files lie or what sites are called.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torch import nn

from offbeat.core.errors import RunError
from offbeat.experiment.spec.choices import name_of
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.setting_docs import changed_settings, to_yaml_line
from offbeat.scenario.data import Dataset

if TYPE_CHECKING:
    from offbeat.experiment.run.run_folder import Run

FACT = "model"  # of the trace, as JSON


def model_facts(module: nn.Module, data: Dataset) -> dict[str, str]:
    """For the trace of a run."""
    told = {
        "architecture": str(module),
        "inputs": f"{'×'.join(map(str, data.input_shape)) or 'one number'} {str(data.x_train.dtype)[6:]}",
        "preprocessing": data.preparation,
        "task": str(data.task),
        "outputs": str(data.outputs),
        "classes": json.dumps(data.class_names, ensure_ascii=False) if data.class_names else "",
        "data": data.summary,
    }
    return {FACT: json.dumps({key: text for key, text in told.items() if text})}


def export_metadata(run: Run) -> dict[str, str]:
    """For the header of what is exported."""
    from offbeat import __version__

    experiment = run.experiment()
    return {
        "format": "pt",  # as others write it: tensors of PyTorch
        **_stored_facts(run),
        "model": _describe_choice(experiment, "model"),
        "strategy": _describe_choice(experiment, "strategy"),
        "seed": str(experiment.seed),
        "run": run.folder.resolve().name,
        "digest": run.digest() if run.complete else "unfinished: the model of the last checkpoint",
        "offbeat": __version__,
    }


def with_metadata(model: bytes, told: dict[str, str]) -> bytes:
    """A model in safetensors with this in its header: the same bytes each time, where the library's own order varies.

    Eight bytes with the length of the header, the header as JSON, the numbers; these begin at a multiple of eight.
    """
    length = int.from_bytes(model[:8], "little")
    header = {"__metadata__": told, **json.loads(model[8 : 8 + length])}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + model[8 + length :]


def _stored_facts(run: Run) -> dict[str, str]:
    """When the run began; nothing of a run of before this was noted."""
    from offbeat.metrics import trace_summary

    with trace_summary.open_trace(run.trace_file) as db:
        stored = db.execute("SELECT value FROM facts WHERE key = ?", (FACT,)).fetchone()
    try:
        return {str(key): str(text) for key, text in json.loads(stored[0]).items()} if stored else {}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise RunError(f"the trace's fact {FACT} is damaged: {str(stored[0])[:40]!r}") from None


def _describe_choice(experiment: Experiment, setting: str) -> str:
    value = getattr(experiment, setting)
    shown = {key: v for key, v in changed_settings(value).items() if key != "weights"}  # a path
    return to_yaml_line({"name": name_of(setting, value), **shown})
