"""Names, scales and loading of all presets, general ones and those of papers."""

from __future__ import annotations

from typing import get_args

from offbeat.core.errors import require, unknown_name
from offbeat.experiment import Preset, Scale
from offbeat.papers import load_paper_preset, paper_preset_functions
from offbeat.presets.general import GENERAL_PRESETS


def names() -> list[str]:
    """List the names of all presets: the general ones, then paper by paper."""
    return [*sorted(GENERAL_PRESETS), *paper_preset_functions()]


def scales(name: str) -> list[str]:
    """List the scales of a preset; a general preset has one scale without a name."""
    return list(get_args(Scale)) if name in paper_preset_functions() else []


def load(name: str, scale: Scale | None = None) -> Preset:
    """Return the preset with this name; the default scale of a paper's preset is the paper's."""
    if name in GENERAL_PRESETS:
        require(scale is None, f"preset {name!r} has only one scale: omit {scale!r}")
        return GENERAL_PRESETS[name]()
    if name not in paper_preset_functions():
        raise unknown_name("preset", name, names())
    return load_paper_preset(name, scale)
