"""Descriptions of the files of a run and of the tables of its trace; tests compare them with a run and the code."""

from __future__ import annotations

FILES = {
    "experiment.yaml": "the resolved experiment with all defaults and changes; a valid experiment file",
    "world.json": "the experiment with checksums of data, recordings and user code, which resume verifies",
    "environment.json": "versions, machine, worker, and the data folder",
    "command.txt": "the command that repeats the run",
    "run.sqlite": "trace and metrics, see below; `-wal` and `-shm` files belong to SQLite",
    "checkpoint/": "checkpoints while the run is unfinished",
    "model.safetensors": "the final model, a plain state_dict with a header that describes it",
    "finished.json": "checksums of the files of a finished run",
    "code/": "copies of user code that the experiment names",
    "lock": "locked by the process that computes the run",
}

COLUMNS = {
    "trace": {
        "seq": "order",
        "now": "time",
        "kind": "kind of event, see below",
        "client": "the client",
        "ticket": "the job; a dispatch and its answer have the same ticket",
        "version": "version of the global model when the row was written",
        "base_version": "version that the client received; `version - base_version` is the staleness of an answer",
        "steps": "local steps of an answer",
        "examples": "training examples of an answer",
        "bytes": "bytes that were sent",
        "detail": "reason, or key of the timer",
    },
    "commits": {"seq": "order", "now": "time", "version": "the new version of the global model"},
    "notes": {
        "seq": "order",
        "now": "time",
        "ticket": "the job, if the note refers to one",
        "key": "name of a quantity that the method notes (`Note`)",
        "value": "number",
    },
    "metrics": {
        "seq": "order",
        "now": "time: a point of the evaluation grid",
        "version": "version of the evaluated model",
        "updates": "accepted updates so far",
        "key": "`acc`, `loss`, …; `acc/slowest` is the metric of a group of clients ([metrics](../metrics.md))",
        "value": "number",
    },
    "clients": {
        "seq": "order",
        "now": "time",
        "version": "version of the evaluated model",
        "client": "client whose examples are used",
        "key": "metric",
        "value": "number",
    },
    "facts": {"key": "see below", "value": "text or JSON"},
}

ROW_KINDS = {
    "dispatch": "a model was sent to a client for training",
    "arrive": "an update arrived and passed the gate",
    "refuse": "the gate refused an update (not finite, wrong shape, too large, unknown ticket)",
    "reject": "the strategy rejected an update, for example because it is too old",
    "lost": "a job will not be answered: the client left, failed, or took too long",
    "late": "an answer arrived after its job was lost",
    "duplicate": "an answer arrived again",
    "left": "a client became unreachable",
    "back": "a client became reachable, for the first time or again",
    "examples": "the examples of a client changed",
    "timer": "a timer of the strategy fired",
    "stop": "the run ended",
}

FACTS = {
    "names": "JSON: client → name, if clients have names",
    "higher_is_better": "JSON: metric → true or false",
    "data": "summary of the data set",
    "model": "JSON: architecture, inputs, preprocessing, classes",
    "evaluated": "evaluation data of the metrics: `test` or `clients`",
    "surveyed": "examples behind the table `clients`",
    "slowest": "clients of this group, separated by commas; likewise `active` and `stragglers`",
    "worker": "the worker",
    "wall_seconds": "host seconds, over all resumes",
    "server_seconds": "host seconds in the strategy",
    "server_bytes": "size of the strategy's state",
}
