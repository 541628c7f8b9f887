"""What the files of a run and the tables of its trace hold; tests hold this against a run and against the code."""

from __future__ import annotations

FILES = {
    "experiment.yaml": "the experiment as it was resolved: every default and change in it; it can be run again",
    "world.json": "the experiment once more, with checksums of data, recordings and own code: a run goes on in no "
    "other world",
    "environment.json": "versions, machine, worker, and the data folder that was named",
    "command.txt": "the command that repeats it",
    "run.sqlite": "trace and metrics, as below; `-wal` and `-shm` beside it are SQLite's",
    "checkpoint/": "to resume from, while it runs",
    "model.safetensors": "the final model, a plain state_dict; its header says what its user has to know",
    "finished.json": "checksums of all this, once it is done",
    "code/": "copies of your own code, where the experiment names any",
    "lock": "held by the process that runs it",
}

COLUMNS = {
    "trace": {
        "seq": "order",
        "now": "when",
        "kind": "what happened, see below",
        "client": "whom it is about",
        "ticket": "the job: a dispatch and its answer have the same",
        "version": "of the global model when the row was written",
        "base_version": "of an answer: the version its client was sent; `version - base_version` is its staleness",
        "steps": "of an answer: local steps that were taken",
        "examples": "of an answer: examples that were trained on",
        "bytes": "what travelled",
        "detail": "why, or which timer",
    },
    "commits": {"seq": "order", "now": "when", "version": "the new version of the global model"},
    "notes": {
        "seq": "order",
        "now": "when",
        "ticket": "the job it is about, if it is about one",
        "key": "a quantity of the method's own (`Note`)",
        "value": "a number",
    },
    "metrics": {
        "seq": "order",
        "now": "when: a point of the evaluation grid",
        "version": "of the model that was evaluated",
        "updates": "accepted so far",
        "key": "`acc`, `loss`, …; `acc/slowest` is the metric of a group of clients ([metrics](../metrics.md))",
        "value": "a number",
    },
    "clients": {
        "seq": "order",
        "now": "when",
        "version": "of the model that was evaluated",
        "client": "whose examples",
        "key": "the metric",
        "value": "a number",
    },
    "facts": {"key": "see below", "value": "text, or JSON"},
}

KINDS = {
    "dispatch": "a client was sent a model to train",
    "arrive": "its update came and passed the gate",
    "refuse": "its update did not pass the gate (not finite, wrong shape, too far, nobody asked): the strategy "
    "never saw it",
    "reject": "the strategy wanted no part of the update (too old, say)",
    "lost": "a job will not be answered: the client left, failed, or took too long",
    "late": "an answer to a job that had been given up",
    "duplicate": "an answer that had come before",
    "left": "a client cannot be reached any more",
    "back": "a client can be reached again, or for the first time",
    "examples": "a client has more examples, or others, than before",
    "timer": "a timer of the strategy fired",
    "stop": "the end",
}

FACTS = {
    "names": "JSON, client → name, where sites have names",
    "higher_is_better": "JSON, metric → true or false",
    "data": "the data set in a line",
    "model": "JSON: architecture, inputs, preprocessing, classes",
    "evaluated": "what the metrics are of: `test` or `clients`",
    "surveyed": "what the table `clients` is of",
    "slowest": "clients of that group, with commas; likewise `active` and `stragglers`",
    "worker": "who trained",
    "wall_seconds": "of the host, over all resumes",
    "server_seconds": "of these, in the strategy",
    "server_bytes": "that the strategy's state takes",
}
