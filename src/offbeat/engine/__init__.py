"""Engines that drive strategies in virtual and in wall-clock time."""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
