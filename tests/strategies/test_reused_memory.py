"""Every strategy on vectors in used memory, which only large models get otherwise: not a bit is different."""

from __future__ import annotations

from typing import Any

import pytest

from offbeat.core.parts import large_vectors
from offbeat.core.strategies import REGISTRY
from offbeat.testing import check
from test_golden import CASES, trace_of


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_vectors, "MIN_REUSED_BYTES", 1)


@pytest.mark.parametrize(("name", "label", "settings"), CASES, ids=[f"{name}-{label}" for name, label, _ in CASES])
def test_used_memory_changes_no_trace(
    monkeypatch: pytest.MonkeyPatch, name: str, label: str, settings: dict[str, Any]
) -> None:
    fresh = trace_of(name, settings)
    monkeypatch.setattr(large_vectors, "MIN_REUSED_BYTES", 1)
    assert trace_of(name, settings) == fresh


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("name", list(REGISTRY))
def test_laws_hold_on_used_memory(name: str) -> None:
    broken = [finding for finding in check(REGISTRY[name](), scripts=6) if not finding.passed]
    assert broken == []
