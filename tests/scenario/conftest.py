"""Fixtures of the scenario tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty data root."""
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    return tmp_path
