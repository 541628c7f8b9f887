"""The simulated world: data sets and their division among clients, models, delays, network, availability, faults.

Each kind of choice has a registry, a dict from names to classes. The first paragraph of a class's docstring is the
summary that `offbeat list` prints.
"""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
