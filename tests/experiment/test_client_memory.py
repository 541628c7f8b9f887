"""Tests of the limit of client memory, an option of runs that does not change results."""

from __future__ import annotations

import pytest
import torch

import offbeat
from experiment import messages
from offbeat.core.errors import ConfigError
from offbeat.core.strategies import CA2FL, Mifa
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import INTERRUPTED
from offbeat.experiment.run import checksums
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.client_memory import MemoryLimit, parse_memory_limit
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.models import Linear
from offbeat.training.trainer import Training

SMALL = Experiment(
    clients=6, model=Linear(), training=Training(epochs=1), strategy=CA2FL(k=2), until=Until(updates=40), seed=1
)
TWO = "5200B"  # two rows of 650 float32


@pytest.mark.parametrize(
    ("text", "chosen", "written"),
    [
        ("8GB", MemoryLimit(8 * 10**9), "8GB"),
        ("500MB", MemoryLimit(500 * 10**6), "500MB"),
        ("1.5gb", MemoryLimit(1_500_000_000), "1500MB"),
        ("2 GiB", MemoryLimit(2**31), "2147483648B"),
        ("8GB:half", MemoryLimit(8 * 10**9, half=True), "8GB:half"),
        ("1B", MemoryLimit(1), "1B"),
    ],
)
def test_a_size_is_a_number_with_a_unit(text, chosen, written):
    assert parse_memory_limit(text) == chosen
    assert str(chosen) == written
    assert parse_memory_limit(written) == chosen


@pytest.mark.parametrize("text", ["", "8", "GB", "8XB", "-8GB", "8GB 9GB", "1e9B", "٣GB", "nanGB", "8GB:", "8GB:hlaf"])
def test_an_invalid_size_is_rejected_with_an_example(text):
    with pytest.raises(ConfigError, match=messages.INVALID_SIZE):
        parse_memory_limit(text)
    with messages.expect(messages.ZERO_SIZE, error=ConfigError):
        parse_memory_limit("0GB")


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    whole = runs.create_run(tmp_path_factory.mktemp("memory") / "whole", SMALL)
    runs.execute_run(whole)
    return whole.digest()


def test_a_run_with_little_memory_has_the_same_digest(tmp_path, digest):
    run = runs.create_run(tmp_path / "x", SMALL, memory=TWO)
    runs.execute_run(run, checkpoint_every=0.0)
    assert run.digest() == digest
    assert run.summary().client_memory == TWO
    assert checksums.read_checksummed(run.folder / "environment.json")["client_memory"] == TWO
    assert "client_memory" not in (run.folder / "world.json").read_text()
    assert not list((run.folder / "checkpoint").glob("*.slots"))  # a finished run needs none


@pytest.mark.parametrize("later", [None, "1GB", "1B"])
def test_a_resumed_run_keeps_its_limit_or_takes_another(tmp_path, digest, later):
    run = runs.create_run(tmp_path / "x", SMALL, memory=TWO)
    outcome = runs.execute_run(run, watch=lambda status: status.updates > 15)
    assert outcome is not None
    assert outcome.reason == INTERRUPTED
    assert list((run.folder / "checkpoint").glob("rows-*.slots"))
    runs.execute_run(run, memory=later)
    assert run.digest() == digest


def test_a_run_without_limit_can_be_resumed_with_one(tmp_path, digest):
    run = runs.create_run(tmp_path / "x", SMALL)
    runs.execute_run(run, watch=lambda status: status.updates > 10)
    runs.execute_run(run, watch=lambda status: status.updates > 20, memory="1B")
    assert list((run.folder / "checkpoint").glob("rows-*.slots"))
    runs.execute_run(run)  # the checkpoint lies partly in files: they are used, limit or not
    assert run.digest() == digest


def test_files_without_checkpoint_are_removed(tmp_path, digest):
    run = runs.create_run(tmp_path / "x", SMALL, memory=TWO)
    (run.folder / "checkpoint").mkdir()
    (run.folder / "checkpoint" / "rows-2624.slots").write_bytes(b"x" * 100_000)
    runs.execute_run(run, watch=lambda status: status.updates > 15)
    # six clients and two checkpoints: fewer than 18 rows of 2,624 bytes
    assert (run.folder / "checkpoint" / "rows-2624.slots").stat().st_size < 18 * 2624
    runs.execute_run(run)
    assert run.digest() == digest


def test_half_precision_changes_results_and_cannot_change_on_resume(tmp_path, digest):
    half = runs.create_run(tmp_path / "half", SMALL, memory="1GB:half")
    spilled = runs.create_run(tmp_path / "spilled", SMALL, memory="1B:half")
    for run in (half, spilled):
        runs.execute_run(run, watch=lambda status: status.updates > 15)
        with messages.expect(messages.STORES_16_BITS, error=ConfigError):
            runs.execute_run(run, memory="1GB")
        runs.execute_run(run)
    assert half.digest() == spilled.digest() != digest
    with messages.expect(messages.STORES_FULL_PRECISION, error=ConfigError):
        runs.execute_run(runs.create_run(tmp_path / "plain", SMALL), memory="1GB:half")


@pytest.mark.parametrize("strategy", [CA2FL(k=3), Mifa(lr=0.1)])
def test_simulate_spills_into_a_temporary_file(strategy):
    clients = [(torch.randn(16, 4, generator=torch.Generator().manual_seed(i)), torch.arange(16) % 2) for i in range(8)]

    def run(memory: str | None) -> offbeat.Simulation:
        torch.manual_seed(0)
        return offbeat.simulate(torch.nn.Linear(4, 2), clients, strategy, until="2000s", client_memory=memory)

    plain, spilled = run(None), run("80B")
    assert torch.equal(plain.outcome.model, spilled.outcome.model)
    assert plain.summary.server_bytes == spilled.summary.server_bytes  # what the method needs, in RAM or in files
    assert (plain.summary.client_memory, spilled.summary.client_memory) == (None, "80B")
    with messages.expect("client memory '80'", error=ConfigError):
        run("80")
