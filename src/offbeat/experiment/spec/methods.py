"""An experiment file with the methods it compares: what stands under `methods:`.

    methods:                            methods:
      - fedbuff(k=2)          or          small buffer: fedbuff(k=2)
      - orthofl                           orthogonal: {name: orthofl, beta: 0.4}

Everything else in it is an experiment. A `strategy:` of its own is what a single run takes; where a method is of the
same name, its settings are what that method starts from.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError
from offbeat.core.protocol import Strategy
from offbeat.experiment.spec import call_syntax, choices, experiment_files, experiment_paths
from offbeat.experiment.spec.call_syntax import ChoiceCall
from offbeat.experiment.spec.config import Experiment, strategy_name
from offbeat.experiment.spec.serialization import FileContext

SECTION = "methods"


@dataclass(frozen=True)
class ExperimentWithMethods:
    experiment: Experiment
    methods: Mapping[str, Strategy]  # label -> strategy; empty where the file has no such section
    names_strategy: bool  # it says which strategy a single run takes
    all_owners: bool  # it does not say how many clients there are

    def needs_method_choice(self, changes: Iterable[str]) -> bool:
        """Is it still open which of the methods a single run would be of?"""
        return bool(self.methods) and not self.names_strategy and not any(map(_sets_strategy, changes))


def _sets_strategy(change: str) -> bool:
    return experiment_files.split_change(change)[0] == ["strategy"]


def read_experiment_with_methods(path: Path) -> ExperimentWithMethods:
    where, tree = str(path), experiment_files.read_values(path)
    section = tree.get(SECTION) if isinstance(tree, Mapping) else None
    rest = {key: value for key, value in tree.items() if key != SECTION} if isinstance(tree, Mapping) else tree
    chosen = isinstance(rest, Mapping) and "strategy" in rest
    experiment, left_open = experiment_paths.resolve_experiment(rest, path)
    try:
        own = {strategy_name(experiment): experiment.strategy} if chosen else {}
        methods = {
            label: _build_method(label, given, experiment, own, FileContext(path.parent))
            for label, given in _label_section(section).items()
        }
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if isinstance(tree, Mapping) and SECTION in tree and not methods:
        raise ConfigError(f"{where}: {SECTION} names none: write {SECTION}: [fedbuff(k=2), orthofl]")
    for label, strategy in methods.items():
        same = next(other for other, before in methods.items() if before == strategy)
        if same != label:
            raise ConfigError(f"{where}: {SECTION}: {same} and {label} are the same, setting by setting: keep one")
    return ExperimentWithMethods(experiment, methods, chosen, left_open)


def _label_section(section: Any) -> dict[str, Any]:
    """Label -> strategy, as given."""
    if section is None:
        return {}
    if isinstance(section, Mapping):
        return {_check_label(label): given for label, given in section.items()}
    given = [section] if isinstance(section, str) else section
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise ConfigError(
            f"{SECTION} is a list of words, such as [fedbuff(k=2), orthofl], or a mapping of labels to strategies"
        )
    # YAML cuts [fedbuff(k=2,lr=0.5)] at every comma: put together, they are cut at the right ones
    found = label_methods(call_syntax.split_calls(",".join(given)), ())
    for word, _ in found:
        if [other for other, _ in found].count(word) > 1:
            raise ConfigError(f"{SECTION}: {word} is there twice")
    return {label: word for word, label in found}


def _check_label(given: Any) -> str:
    if not isinstance(given, (str, int, float)) or not (label := str(given).strip()) or not label.isprintable():
        raise ConfigError(f"{SECTION}: {given!r} is no label: write one line of text")
    return label


def _build_method(
    label: str, given: Any, experiment: Experiment, own: Mapping[str, Any], home: FileContext
) -> Strategy:
    where = f"{SECTION}, {label}"
    try:
        if isinstance(given, str):
            return experiment_files.with_changes(experiment, [f"strategy={given}"], own, home).strategy
        return experiment_files.from_values({"strategy": given}, home).strategy
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


MAX_FOLDER_NAME = 80  # letters of a folder's name: some file systems end at 143, and a seed follows


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """A folder's name for each: letters, digits, dots and dashes; those that would be the same, also where capital
    and small letters are, get a number.
    """
    made: dict[str, str] = {}
    taken: set[str] = set()
    for label in dict.fromkeys(labels):
        plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).strip("-.")[:MAX_FOLDER_NAME].rstrip("-.") or "method"
        name, number = plain, 1
        while name.casefold() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.casefold())
        made[label] = name
    return made


def label_methods(given: Iterable[str], methods: Container[str]) -> list[tuple[str, str]]:
    """Each word of these with what it is called: `CosBuff(k=3)` for `mine.py:CosBuff(k=3)`, unless two are called so
    then; `methods` have names already.
    """
    read = [(word, ChoiceCall(word) if word in methods else call_syntax.parse_call(word)) for word in given]
    short = [str(ChoiceCall(choices.short_name(found.name), found.settings)) for _, found in read]
    return [
        (str(found), name if short.count(name) == [f for _, f in read].count(found) else str(found))
        for (_, found), name in zip(read, short, strict=True)
    ]


def distinct_methods(experiments: Iterable[tuple[str, Experiment]]) -> tuple[dict[str, Experiment], list[str]]:
    """Those that differ, and a line for each that is another one again."""
    kept: dict[str, Experiment] = {}
    lines = []
    for label, experiment in experiments:
        same = next((other for other, before in kept.items() if before == experiment), None)
        if same is None:
            kept[label] = experiment
        elif same == label:
            lines.append(f"{label} is named twice: it is run once")
        else:
            lines.append(f"{label} is {same}, setting by setting: it is run once, as {same}")
    return kept, lines
