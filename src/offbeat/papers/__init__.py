"""Reproduction of published results: presets of the papers, their published numbers, and the comparison with our runs.

Each paper has a folder with `presets.py` (its experiments) and `published.yaml` (its claims and numbers). `run_store`
holds finished runs, `run_import` adds runs from elsewhere, `verdict` judges, `paper_page` writes the pages.
"""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
