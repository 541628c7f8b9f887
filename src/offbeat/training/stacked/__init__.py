"""Training of many clients as one stack of vectors."""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
