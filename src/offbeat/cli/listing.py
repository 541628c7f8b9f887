"""offbeat list: what there is to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from offbeat.cli.options import Json

WHAT = ("strategies", "presets", "datasets", "models", "delays", "partitions", "streams")


def list_names(what: Annotated[str, typer.Argument(metavar="|".join(WHAT))], as_json: Json = False) -> None:
    """List strategies, presets, datasets, models, delays, partitions or streams."""
    from offbeat.core.errors import unknown

    if what not in WHAT:
        raise unknown("list", what, WHAT)
    from offbeat.cli.output import print_json, print_table

    entries = _entries(what)
    if as_json:
        print_json([{"name": name, "summary": text} for name, text in entries.items()])
    else:
        print_table([["name", "what it is"], *([name, text] for name, text in entries.items())], left=True)


def _entries(what: str) -> dict[str, str]:
    from offbeat.scenario.registry import summaries

    if what == "strategies":
        return _strategies()
    if what == "presets":
        from offbeat import presets

        return {name: presets.load(name).summary for name in presets.names()}
    from offbeat.scenario.data import DATASETS
    from offbeat.scenario.delays import DELAYS
    from offbeat.scenario.models import MODELS
    from offbeat.scenario.partition import PARTITIONS
    from offbeat.scenario.streaming import STREAMS

    registries: dict[str, Mapping[str, Any]] = {
        "datasets": DATASETS, "models": MODELS, "delays": DELAYS, "partitions": PARTITIONS, "streams": STREAMS,
    }  # fmt: skip
    return summaries(registries[what])


def _strategies() -> dict[str, str]:
    """The paper each strategy file opens with."""
    import sys

    from offbeat.core.strategies import REGISTRY

    papers = {}
    for name, cls in REGISTRY.items():
        text = sys.modules[cls.__module__].__doc__ or ""
        papers[name] = next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Paper:")), "")
    return papers
