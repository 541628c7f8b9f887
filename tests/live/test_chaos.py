"""Three random kills of `make chaos`."""

from __future__ import annotations

import pytest
from chaos import chaos

pytest.importorskip("flwr")


def test_a_run_survives_random_kills(tmp_path):
    assert chaos(tmp_path, kills=3, seed=1, say=print) == []
