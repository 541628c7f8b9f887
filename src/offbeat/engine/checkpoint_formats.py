"""Checkpoints of earlier formats, read as if they were of this one.

1: no tally of the trace, the heap in the tree, no model known to be finite. 2: other names. 3: this one.
"""

from __future__ import annotations

from offbeat.core.snapshot import Tree

MEASURED = {
    "evaluations": "points",
    "evaluated": "last",
    "surveyed": "surveyed",
    "metrics": "metrics",
    "server_bytes": "server_bytes",
}

# what classes and their fields were called before format 3
CLASSES = {
    "offbeat.core.parts.server_optimizers:Memory": "offbeat.core.parts.server_optimizers:Moments",
    "offbeat.core.parts.compass:Group": "offbeat.core.strategies.fedcompass.compass:Group",
    "offbeat.core.parts.compass:Schedule": "offbeat.core.strategies.fedcompass.compass:Schedule",
    "offbeat.core.strategies.fedpac:HeadThenBody": "offbeat.core.strategies.fedpac.halves:HeadThenBody",
    "offbeat.core.strategies.fedpac:Split": "offbeat.core.strategies.fedpac.halves:Halves",
    "offbeat.core.strategies.fedpsa:Sketched": "offbeat.core.strategies.fedpsa.sketch:Sketched",
}
FIELDS = {
    "offbeat.engine.progress:Progress": {"barren": "since_accepted"},
    "offbeat.core.parts.selection:Seats": {"flying": "at_work"},
    "offbeat.core.parts.epochs:Epochs": {"flying": "at_work"},
}
STATE = {"flying": "at_work"}  # of a strategy


def upgraded(tree: Tree) -> Tree:
    """The tree of a checkpoint of any format, in this one's words."""
    if "evaluation" not in tree:
        tree = _measured_apart(tree)
    if "claimed" in tree:
        return tree
    state = {STATE.get(name, name): value for name, value in tree["state"].items()}
    return _renamed({**tree, "state": state, "claimed": tree.get("told")})


def _measured_apart(tree: Tree) -> Tree:
    """Before format 2 what was measured stood with the progress."""
    before = tree["progress"]["fields"]
    measured = {new: before[old] for old, new in MEASURED.items()}
    progress = {name: value for name, value in before.items() if name not in MEASURED}
    return {
        **tree,
        "progress": {**tree["progress"], "fields": progress},
        "evaluation": {"$class": "offbeat.engine.evaluation_schedule:Measured", "fields": measured},
    }


def _renamed(tree: Tree) -> Tree:
    if isinstance(tree, list):
        return [_renamed(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if "$class" not in tree:
        return {name: _renamed(value) for name, value in tree.items()}
    name = str(tree["$class"])
    name = CLASSES.get(name, name)
    names = FIELDS.get(name, {})
    return {"$class": name, "fields": {names.get(k, k): _renamed(v) for k, v in tree["fields"].items()}}
