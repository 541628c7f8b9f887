"""Expected wording of messages of the presets: tables of (input, part of the message), and patterns of single tests."""

from __future__ import annotations

ONE_SCALE = "'quickstart' has only one scale"
UNKNOWN_SCALE = "unknown scale 'quik': did you mean 'quick'"
UNKNOWN_PRESET = "unknown preset 'orthofl/table2-minst': did you mean 'orthofl/table2-mnist'"
