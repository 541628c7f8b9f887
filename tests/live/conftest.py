"""Every test here runs real processes over Flower: `make test-live` runs them, and `make test` the one marked slow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from federation import Command


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.live)


@pytest.fixture
def offbeat(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts commands; none of them, and nothing they started, outlives the test."""
    pytest.importorskip("flwr")
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        started.append(Command(tmp_path, *arguments))
        return started[-1]

    yield start
    for command in started:
        command.end()
