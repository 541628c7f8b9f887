"""An experiment file with the methods it compares: what stands under `methods:`.

    methods:                            methods:
      - fedbuff(k=2)          or          small buffer: fedbuff(k=2)
      - orthofl                           orthogonal: {name: orthofl, beta: 0.4}

Everything else in it is an experiment. A `strategy:` of its own is what a single run takes; where a method is of the
same name, its settings are what that method starts from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError
from offbeat.core.protocol import Strategy
from offbeat.experiment import method_labels
from offbeat.experiment.spec import call_syntax, experiment_files, experiment_paths
from offbeat.experiment.spec.config import Experiment, strategy_name
from offbeat.experiment.spec.serialization import Home

SECTION = "methods"


@dataclass(frozen=True)
class Study:
    experiment: Experiment
    methods: Mapping[str, Strategy]  # label -> strategy; empty where the file has no such section
    chosen: bool  # it says which strategy a single run takes
    left_open: bool  # it does not say how many clients there are

    def wants_one(self, changes: Iterable[str]) -> bool:
        """Is it still open which of the methods a single run would be of?"""
        return bool(self.methods) and not self.chosen and not any(map(_names_one, changes))


def _names_one(change: str) -> bool:
    return experiment_files.split_change(change)[0] == ["strategy"]


def read(path: Path) -> Study:
    where, tree = str(path), experiment_files.tree(path)
    section = tree.get(SECTION) if isinstance(tree, Mapping) else None
    rest = {key: value for key, value in tree.items() if key != SECTION} if isinstance(tree, Mapping) else tree
    chosen = isinstance(rest, Mapping) and "strategy" in rest
    experiment, left_open = experiment_paths.of(rest, path)
    try:
        own = {strategy_name(experiment): experiment.strategy} if chosen else {}
        methods = {
            label: _made(label, given, experiment, own, Home(path.parent))
            for label, given in _labelled(section).items()
        }
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if isinstance(tree, Mapping) and SECTION in tree and not methods:
        raise ConfigError(f"{where}: {SECTION} names none: write {SECTION}: [fedbuff(k=2), orthofl]")
    for label, strategy in methods.items():
        same = next(other for other, before in methods.items() if before == strategy)
        if same != label:
            raise ConfigError(f"{where}: {SECTION}: {same} and {label} are the same, setting by setting: keep one")
    return Study(experiment, methods, chosen, left_open)


def _labelled(section: Any) -> dict[str, Any]:
    """Label -> strategy, as given."""
    if section is None:
        return {}
    if isinstance(section, Mapping):
        return {_label(label): given for label, given in section.items()}
    given = [section] if isinstance(section, str) else section
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise ConfigError(
            f"{SECTION} is a list of words, such as [fedbuff(k=2), orthofl], or a mapping of labels to strategies"
        )
    # YAML cuts [fedbuff(k=2,lr=0.5)] at every comma: put together, they are cut at the right ones
    found = method_labels.of(call_syntax.split(",".join(given)), ())
    for word, _ in found:
        if [other for other, _ in found].count(word) > 1:
            raise ConfigError(f"{SECTION}: {word} is there twice")
    return {label: word for word, label in found}


def _label(given: Any) -> str:
    if not isinstance(given, (str, int, float)) or not (label := str(given).strip()) or not label.isprintable():
        raise ConfigError(f"{SECTION}: {given!r} is no label: write one line of text")
    return label


def _made(label: str, given: Any, experiment: Experiment, own: Mapping[str, Any], home: Home) -> Strategy:
    where = f"{SECTION}, {label}"
    try:
        if isinstance(given, str):
            return experiment_files.changed(experiment, [f"strategy={given}"], own, home).strategy
        return experiment_files.from_tree({"strategy": given}, home).strategy
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
