"""Is Flower there?"""

from __future__ import annotations

from importlib.util import find_spec

from offbeat.core.errors import ConfigError


def need_flower() -> None:
    if find_spec("flwr") is None:
        raise ConfigError("this needs Flower, which is not installed: pip install 'offbeat[flower]'")
