"""The methods of an experiment file, and their labels in tables and folder names.

    methods:                            methods:
      - fedbuff(k=2)          or          small buffer: fedbuff(k=2)
      - orthofl                           orthogonal: {name: orthofl, beta: 0.4}

The rest of the file is an experiment. Its `strategy:` section is the method of a single run, and the default settings
of methods with the same name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import ConfigError
from offbeat.core.protocol import Strategy
from offbeat.experiment.spec import call_syntax, choices, experiment_files, experiment_paths
from offbeat.experiment.spec.call_syntax import ChoiceCall
from offbeat.experiment.spec.config import Experiment, strategy_name
from offbeat.experiment.spec.serialization import FileContext

SECTION = "methods"
MAX_FOLDER_NAME = 80  # characters; some file systems allow only 143, and a seed follows


@dataclass(frozen=True)
class ExperimentWithMethods:
    """The content of an experiment file."""

    experiment: Experiment
    methods: Mapping[str, Strategy]  # by label; empty if the file has no such section
    names_strategy: bool  # whether the file has a strategy for single runs
    all_owners: bool  # whether the file leaves the number of clients open

    def needs_method_choice(self, changes: Iterable[str]) -> bool:
        """Tell whether neither the file nor the changes choose a method for a single run."""
        chosen = any(experiment_files.split_change(change)[0] == ["strategy"] for change in changes)
        return bool(self.methods) and not self.names_strategy and not chosen


def read_experiment_with_methods(path: Path) -> ExperimentWithMethods:
    """Read an experiment file with its methods; relative paths start at its folder."""
    values = experiment_files.read_values(path)
    sections = values if isinstance(values, Mapping) else {}
    rest = {key: value for key, value in sections.items() if key != SECTION}
    names_strategy = "strategy" in rest
    experiment, all_owners = experiment_paths.resolve_experiment(rest if sections else values, path)
    defaults = {strategy_name(experiment): experiment.strategy} if names_strategy else {}
    try:
        methods = {
            label: _build_method(label, method, experiment, defaults, FileContext(path.parent))
            for label, method in _label_section(sections.get(SECTION)).items()
        }
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if SECTION in sections and not methods:
        raise ConfigError(f"{path}: {SECTION} is empty: write {SECTION}: [fedbuff(k=2), orthofl]")
    for label, strategy in methods.items():
        same = next(other for other, earlier in methods.items() if earlier == strategy)
        if same != label:
            raise ConfigError(f"{path}: {SECTION}: {same} and {label} have the same settings: keep one")
    return ExperimentWithMethods(experiment, methods, names_strategy, all_owners)


def _label_section(section: object) -> dict[str, object]:
    """Return the entries of the section by label."""
    if section is None:
        return {}
    if isinstance(section, Mapping):
        return {_check_label(label): method for label, method in section.items()}
    entries = [section] if isinstance(section, str) else section
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ConfigError(
            f"{SECTION} is a list such as [fedbuff(k=2), orthofl], or a mapping from labels to strategies"
        )
    # YAML splits [fedbuff(k=2,lr=0.5)] at every comma: join the parts and split them at the right ones
    labels = label_methods(call_syntax.split_calls(",".join(entries)), ())
    methods = [method for method, _ in labels]
    duplicate = next((method for method in methods if methods.count(method) > 1), None)
    if duplicate is not None:
        raise ConfigError(f"{SECTION}: {duplicate} occurs twice")
    return {label: method for method, label in labels}


def _check_label(label: object) -> str:
    """Return a label as text; raise ConfigError if it is not one printable line."""
    if not isinstance(label, (str, int, float)) or not (text := str(label).strip()) or not text.isprintable():
        raise ConfigError(f"{SECTION}: {label!r} is no valid label: write one line of text")
    return text


def _build_method(
    label: str, method: object, experiment: Experiment, defaults: Mapping[str, Strategy], context: FileContext
) -> Strategy:
    """Build the strategy of one entry; `defaults` are the settings of methods with the same name."""
    try:
        if isinstance(method, str):
            return experiment_files.with_changes(experiment, [f"strategy={method}"], defaults, context).strategy
        return experiment_files.from_values({"strategy": method}, context).strategy
    except ConfigError as error:
        raise ConfigError(f"{SECTION}, {label}: {error}") from None


def label_methods(texts: Iterable[str], known: Container[str]) -> list[tuple[str, str]]:
    """Return each method with its label: `CosBuff(k=3)` for `mine.py:CosBuff(k=3)`, unless that is ambiguous.

    Methods in `known` have a label of their own and are not parsed.
    """
    calls = [ChoiceCall(text) if text in known else call_syntax.parse_call(text) for text in texts]
    short = [str(ChoiceCall(choices.short_name(call.name), call.settings)) for call in calls]
    return [
        (str(call), label if short.count(label) == calls.count(call) else str(call))
        for call, label in zip(calls, short, strict=True)
    ]


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """Return a folder name for each label, made of letters, digits, dots and dashes.

    Names that differ only in case get a number, because some file systems ignore case.
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    for label in dict.fromkeys(labels):
        base = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).strip("-.")[:MAX_FOLDER_NAME].rstrip("-.") or "method"
        name, number = base, 1
        while name.casefold() in used:
            number += 1
            name = f"{base}-{number}"
        used.add(name.casefold())
        names[label] = name
    return names


def distinct_methods(experiments: Iterable[tuple[str, Experiment]]) -> tuple[dict[str, Experiment], list[str]]:
    """Return the experiments without duplicates, and a line for each duplicate."""
    distinct: dict[str, Experiment] = {}
    lines = []
    for label, experiment in experiments:
        same = next((other for other, earlier in distinct.items() if earlier == experiment), None)
        if same is None:
            distinct[label] = experiment
        elif same == label:
            lines.append(f"{label} is named twice: it is run once")
        else:
            lines.append(f"{label} has the same settings as {same}: it is run once, as {same}")
    return distinct, lines
