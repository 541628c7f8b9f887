"""Checkpoints of earlier versions, read as if they were of this one."""

from __future__ import annotations

from offbeat.core.snapshot import Tree

MEASURED = {
    "evaluations": "points",
    "evaluated": "last",
    "surveyed": "surveyed",
    "metrics": "metrics",
    "server_bytes": "server_bytes",
}


def upgraded(tree: Tree) -> Tree:
    """Before format 2 what was measured stood with the progress."""
    if "evaluation" in tree:
        return tree
    before = tree["progress"]["fields"]
    measured = {new: before[old] for old, new in MEASURED.items()}
    progress = {name: value for name, value in before.items() if name not in MEASURED}
    return {
        **tree,
        "progress": {**tree["progress"], "fields": progress},
        "evaluation": {"$class": "offbeat.engines.evaluation:Measured", "fields": measured},
    }
