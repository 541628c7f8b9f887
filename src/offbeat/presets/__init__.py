"""Named experiments: functions that return a `Preset`.

Presets of a paper are named after its tables and figures, for example `orthofl/table2-mnist`. They have two scales:
the paper's, and a quick one that takes minutes on two cores with fewer or smaller clients, models and steps.
"""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
