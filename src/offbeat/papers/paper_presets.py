"""Load the presets that reproduce tables and figures of the papers, for example `orthofl/table2-mnist`."""

from __future__ import annotations

from importlib import import_module
from typing import get_args

from offbeat.core.errors import unknown
from offbeat.experiment.preset import Maker, Preset, Scale

PAPERS = ("orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")


def paper_preset_makers() -> dict[str, Maker]:
    """Return the function that makes each preset, by its full name, paper by paper."""
    modules = {paper: import_module(f"offbeat.papers.{paper}.presets") for paper in PAPERS}
    return {f"{paper}/{name}": maker for paper, module in modules.items() for name, maker in module.makers().items()}


def load_paper_preset(name: str, scale: Scale | None = None) -> Preset:
    """Return a paper's preset at the given scale; the default is the paper's own scale."""
    if scale is not None and scale not in get_args(Scale):
        raise unknown("scale", scale, get_args(Scale))
    makers = paper_preset_makers()
    if name not in makers:
        raise unknown("preset", name, [*makers])
    preset = makers[name](scale or "paper")
    if scale == "quick":
        return preset.varied(f"{preset.summary} (quick)", name=f"{name}-quick")
    return preset.varied(preset.summary, name=name)
