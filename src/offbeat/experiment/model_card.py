"""Metadata of exported models: architecture, preprocessing, classes, and the run that trained the model.

The facts are stored in the trace when a run starts, so that an export needs no data. Exported files hold them in
`__metadata__` of the safetensors header. They contain neither file paths nor names of sites.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torch import nn

from offbeat.core.errors import RunError
from offbeat.experiment.spec.choices import name_of
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.setting_docs import changed_settings
from offbeat.scenario.data import Dataset

if TYPE_CHECKING:
    from offbeat.experiment.run.run_folder import Run

FACT = "model"  # name of the fact in the trace; its value is JSON


def model_facts(module: nn.Module, data: Dataset) -> dict[str, str]:
    """Describe model and data for the trace of a run."""
    description = {
        "architecture": str(module),
        "inputs": f"{'×'.join(map(str, data.input_shape)) or 'one number'} {str(data.x_train.dtype)[6:]}",
        "preprocessing": data.preparation,
        "task": str(data.task),
        "outputs": str(data.outputs),
        "classes": json.dumps(data.class_names, ensure_ascii=False) if data.class_names else "",
        "data": data.summary,
    }
    return {FACT: json.dumps({key: text for key, text in description.items() if text})}


def export_metadata(run: Run) -> dict[str, str]:
    """Return the metadata of a run's exported model."""
    from offbeat import __version__

    experiment = run.experiment()
    return {
        "format": "pt",  # the usual entry for tensors of PyTorch
        **_stored_facts(run),
        "model": _describe_choice(experiment, "model"),
        "strategy": _describe_choice(experiment, "strategy"),
        "seed": str(experiment.seed),
        "run": run.folder.resolve().name,
        "digest": run.digest() if run.complete else "unfinished: the model of the last checkpoint",
        "offbeat": __version__,
    }


def with_metadata(model: bytes, metadata: dict[str, str]) -> bytes:
    """Insert metadata into the header of a safetensors file; unlike the library, the order of keys is deterministic.

    The format: eight bytes with the length of the header, the header as JSON, and the tensors, aligned to eight bytes.
    """
    length = int.from_bytes(model[:8], "little")
    header = {"__metadata__": metadata, **json.loads(model[8 : 8 + length])}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + model[8 + length :]


def _stored_facts(run: Run) -> dict[str, str]:
    """Read the facts that were stored when the run started; runs of scripts store none."""
    from offbeat.metrics import open_trace

    with open_trace(run.trace_file) as db:
        stored = db.execute("SELECT value FROM facts WHERE key = ?", (FACT,)).fetchone()
    try:
        return {str(key): str(text) for key, text in json.loads(stored[0]).items()} if stored else {}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise RunError(f"the trace's fact {FACT} is damaged: {str(stored[0])[:40]!r}") from None


def _describe_choice(experiment: Experiment, setting: str) -> str:
    """Format a choice with its changed settings in one line, as an experiment file would."""
    from offbeat.experiment.spec.yaml_text import to_yaml_line

    value = getattr(experiment, setting)
    changed = {key: v for key, v in changed_settings(value).items() if key != "weights"}  # a local path
    return to_yaml_line({"name": name_of(setting, value), **changed})
