"""The presets of all papers, by names such as `orthofl/table2-mnist`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import get_args

from offbeat.core.errors import unknown_name
from offbeat.experiment import Preset, PresetFunction, Scale

PAPERS = ("orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")


@cache
def paper_preset_functions() -> dict[str, PresetFunction]:
    """Return the function that makes each preset, by full name, paper by paper."""
    modules = {paper: import_module(f"offbeat.papers.{paper}.presets") for paper in PAPERS}
    return {
        f"{paper}/{name}": function
        for paper, module in modules.items()
        for name, function in module.preset_functions().items()
    }


def load_paper_preset(name: str, scale: Scale | None = None) -> Preset:
    """Return a paper's preset at the given scale; the default is the paper's own scale."""
    if scale is not None and scale not in get_args(Scale):
        raise unknown_name("scale", scale, get_args(Scale))
    functions = paper_preset_functions()
    if name not in functions:
        raise unknown_name("preset", name, [*functions])
    preset = functions[name](scale or "paper")
    if scale == "quick":
        return preset.varied(f"{preset.summary} (quick)", name=f"{name}-quick")
    return preset.varied(preset.summary, name=name)
