"""The functions that scripts call: `simulate`, `repeat` and `compare`.

`run_simulation` and `run_comparison` contain these functions; `simulation_result` contains their result for one run.
`world_options` defines the keywords that they share, `arguments` validates values, and `progress_line` prints progress.
"""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
