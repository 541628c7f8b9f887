"""Training of stacks on a GPU with recorded CUDA graphs and Triton kernels."""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
