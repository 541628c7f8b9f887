"""Reproduction of published results: presets of the papers, their published numbers, and the comparison with our runs.

Each paper has a folder with `presets.py` (its experiments) and `published.yaml` (its claims and numbers). `run_store`
holds finished runs, `import_runs` adds runs from elsewhere, `verdict` judges, `paper_page` writes the pages.
"""

from __future__ import annotations

from importlib import import_module
from typing import get_args

from offbeat.core.errors import unknown_name
from offbeat.experiment.preset import Preset, PresetFunction, Scale

PAPERS = ("orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")


def paper_preset_makers() -> dict[str, PresetFunction]:
    """Return the function that makes each preset, by its full name, paper by paper."""
    modules = {paper: import_module(f"offbeat.papers.{paper}.presets") for paper in PAPERS}
    return {f"{paper}/{name}": maker for paper, module in modules.items() for name, maker in module.makers().items()}


def load_paper_preset(name: str, scale: Scale | None = None) -> Preset:
    """Return a paper's preset at the given scale; the default is the paper's own scale."""
    if scale is not None and scale not in get_args(Scale):
        raise unknown_name("scale", scale, get_args(Scale))
    makers = paper_preset_makers()
    if name not in makers:
        raise unknown_name("preset", name, [*makers])
    preset = makers[name](scale or "paper")
    if scale == "quick":
        return preset.varied(f"{preset.summary} (quick)", name=f"{name}-quick")
    return preset.varied(preset.summary, name=name)
