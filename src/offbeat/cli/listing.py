"""offbeat list: what there is to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from offbeat.cli.options import Json

WHAT = (
    "strategies",
    "presets",
    "datasets",
    "models",
    "delays",
    "networks",
    "availability",
    "faults",
    "partitions",
    "streams",
    "losses",
)


def list_names(what: Annotated[str, typer.Argument(metavar="|".join(WHAT))], as_json: Json = False) -> None:
    """List strategies, presets, datasets, models, delays, networks, availability, faults, partitions, streams or
    losses.
    """
    from offbeat.core.errors import unknown

    if what not in WHAT:
        raise unknown("list", what, WHAT)
    from offbeat.cli.output import print_json, print_table

    if what == "strategies":
        entries, headings = (
            _strategies(),
            ["name", "year", "mode", "server keeps per client", "client uploads", "paper"],
        )
    else:
        entries, headings = (
            [{"name": name, "summary": text} for name, text in _entries(what).items()],
            ["name", "what it is"],
        )
    entries += [{**dict.fromkeys(entries[0]), **entry} for entry in _of_packages(what)]
    if as_json:
        print_json(entries)
    else:
        print_table(
            [headings, *(["" if value is None else str(value) for value in entry.values()] for entry in entries)],
            left=True,
        )


def _strategies() -> list[dict[str, Any]]:
    """What each says about itself, and the paper its file opens with."""
    from offbeat.core.about import paper_of, year_of
    from offbeat.core.strategies import REGISTRY

    rows: list[dict[str, Any]] = []
    for name, cls in REGISTRY.items():
        about, paper = cls.about, paper_of(cls)  # type: ignore[attr-defined]
        row = {
            "name": name,
            "year": year_of(paper),
            "mode": about.mode,
            "keeps": about.keeps,
            "uploads": about.uploads,
            "summary": paper,
        }
        rows.append(row)
    return rows


def _of_packages(what: str) -> list[dict[str, str]]:
    """What installed packages bring, without loading them."""
    from offbeat.experiment import packages
    from offbeat.experiment.choices import CHOICES

    setting = next((setting for setting, group in packages.GROUPS.items() if group == f"offbeat.{what}"), None)
    names = [] if setting is None else packages.names(setting, CHOICES[setting])
    return [{"name": n, "summary": f"of the package {packages.package_of(str(setting), n)}"} for n in names]


def _entries(what: str) -> dict[str, str]:
    from offbeat.scenario.registry import summaries

    if what == "presets":
        from offbeat import presets

        return {name: presets.load(name).summary for name in presets.names()}
    from offbeat.client.losses import LOSSES
    from offbeat.scenario.availability import AVAILABILITY
    from offbeat.scenario.data import DATASETS
    from offbeat.scenario.delays import DELAYS
    from offbeat.scenario.faults import FAULTS
    from offbeat.scenario.models import MODELS
    from offbeat.scenario.network import NETWORKS
    from offbeat.scenario.partition import PARTITIONS
    from offbeat.scenario.streaming import STREAMS

    registries: dict[str, Mapping[str, Any]] = {
        "datasets": DATASETS,
        "models": MODELS,
        "delays": DELAYS,
        "networks": NETWORKS,
        "availability": AVAILABILITY,
        "faults": FAULTS,
        "partitions": PARTITIONS,
        "streams": STREAMS,
        "losses": LOSSES,
    }
    return summaries(registries[what])
