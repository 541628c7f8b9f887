"""Definition and execution of experiments.

`spec` defines the experiment value, experiment files and named choices; `build` turns an experiment into an engine.
`run` executes a run in its folder, `comparison` and `parameter_sweep` execute many, and `scripted` holds runs whose
model and data come from a script.
"""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
