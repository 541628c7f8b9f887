from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from paper_examples import SMALL

from offbeat.experiment.run import execution as runs
from offbeat.papers.run_store import ReproductionStore


@pytest.fixture(scope="session")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with finished runs of the small setting: two seeds of both methods."""
    path = tmp_path_factory.mktemp("computed")
    comparison = ReproductionStore(path).add_runs(
        SMALL, [(name, seed) for name in ("fedasync", "orthofl") for seed in (0, 1)]
    )
    for _, run in comparison.entries():
        runs.execute_run(run)
    return path


@pytest.fixture
def elsewhere(computed: Path, tmp_path: Path) -> Path:
    """A copy of the store, as if from another machine."""
    return Path(shutil.copytree(computed, tmp_path / "elsewhere"))


@pytest.fixture
def store(tmp_path: Path) -> ReproductionStore:
    return ReproductionStore(tmp_path / "store")
