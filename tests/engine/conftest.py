from __future__ import annotations

import pytest
from small_world import Eager


@pytest.fixture
def eager() -> Eager:
    return Eager()
