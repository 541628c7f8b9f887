"""Named experiments: functions that return a `Preset`.

Presets of a paper are named after its tables and figures, for example `orthofl/table2-mnist`. They have two scales:
the paper's, and a quick one that takes minutes on two cores with fewer or smaller clients, models and steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from offbeat.core.errors import ConfigError, unknown
from offbeat.experiment.preset import Column as Column
from offbeat.experiment.preset import Maker as Maker
from offbeat.experiment.preset import Preset as Preset
from offbeat.experiment.preset import Scale as Scale
from offbeat.papers.paper_presets import load_paper_preset, paper_preset_makers


def _own() -> dict[str, Callable[[], Preset]]:
    from offbeat.presets.hospitals import heart_disease, tcga_brca
    from offbeat.presets.method_settings import digits, mnist
    from offbeat.presets.quickstart import quickstart
    from offbeat.presets.scale import million

    return {
        "quickstart": quickstart,
        "digits": digits,
        "mnist": mnist,
        "heart-disease": heart_disease,
        "tcga-brca": tcga_brca,
        "scale-1m": million,
    }


def names() -> list[str]:
    """List the names of all presets: the general ones, then paper by paper."""
    return [*sorted(_own()), *paper_preset_makers()]


def scales(name: str) -> list[str]:
    """List the scales of a preset; a general preset has one scale without a name."""
    return list(get_args(Scale)) if name in paper_preset_makers() else []


def load(name: str, scale: Scale | None = None) -> Preset:
    """Return the preset with this name; the default scale of a paper's preset is the paper's."""
    own = _own()
    if scale is not None and scale not in get_args(Scale):
        raise unknown("scale", scale, get_args(Scale))
    if name in own:
        if scale is not None:
            raise ConfigError(f"preset {name!r} has one scale only: leave {scale!r} away")
        return own[name]()
    if name not in paper_preset_makers():
        raise unknown("preset", name, names())
    return load_paper_preset(name, scale)
