"""Worlds read from a file, and what the network adds to a job."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from offbeat.core.client_environment import JobTiming
from offbeat.core.errors import DataError
from offbeat.core.protocol import Layout, LocalWork, Slice
from offbeat.core.strategies import FedAsync, Local
from offbeat.core.strategy_contract import contract_of
from offbeat.scenario import network, recordings
from offbeat.scenario.delays import Changing, ConstantDelays, RecordedDelays
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.network import Bandwidth, Instant, Offset, Payload
from offbeat.scenario.simulated_world import SimulatedWorld
from scenario import messages

GOOD = """client,t,available,seconds_per_step,mbps
0,0,1,2.0,8
0,10,1,4.0,4
1,0,1,0.5,100
"""


def written(folder: Path, text: str) -> str:
    path = folder / "trace.csv"
    path.write_text(text)
    return str(path)


def world(delays: Any, **settings: Any) -> SimulatedWorld:
    return SimulatedWorld(
        delays=delays, counts=ExampleCounts([10, 10]), seed=0, steps=lambda client, work, examples: 3, **settings
    )


# ---------------------------------------------------------------- recordings


def test_recorded_values_are_valid_from_their_time_on(tmp_path: Path) -> None:
    law = RecordedDelays(path=written(tmp_path, GOOD))
    w = world(law)
    assert w.time_job(0, 0, LocalWork(), 10, started=0.0) == JobTiming(6.0, 6.0)  # 3 steps of 2 s
    # from 7 on: 1.5 steps until 10, the other 1.5 at 4 s; at 7 one would have guessed 6
    assert w.time_job(0, 0, LocalWork(), 10, started=7.0) == pytest.approx((9.0, 6.0, False, None, None))
    assert w.time_job(0, 0, LocalWork(), 10, started=99.0) == JobTiming(12.0, 12.0)
    assert w.time_job(1, 0, LocalWork(), 10, started=99.0) == JobTiming(1.5, 1.5)
    # the last value counts as long as the one before: (2 + 4) / 2
    assert (law.expected(0, 0, steps=1), law.expected(0, 1, steps=4)) == (3.0, 2.0)


def test_unused_columns_may_be_missing(tmp_path: Path) -> None:
    path = written(tmp_path, "client,t,mbps\n0,0,5\n")
    network.RecordedBandwidth(path=path).covers([0])
    with pytest.raises(DataError, match=messages.RECORDING_COLUMN):
        RecordedDelays(path=path).covers([0])


@pytest.mark.parametrize(("text", "message"), messages.RECORDINGS)
def test_invalid_recordings_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        RecordedDelays(path=written(tmp_path, text)).covers(range(2))


def test_available_is_yes_or_no(tmp_path: Path) -> None:
    path = written(tmp_path, "client,t,available\n0,0,maybe\n")
    with pytest.raises(DataError, match=messages.RECORDING_AVAILABLE):
        recordings.read_column(path, recordings.AVAILABLE)


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=messages.RECORDING_MISSING):
        RecordedDelays(path=str(tmp_path / "missing.csv")).covers([0])
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match=messages.RECORDING_BINARY):
        RecordedDelays(path=str(tmp_path / "binary.csv")).covers([0])


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=messages.RECORDING_PYARROW):
        RecordedDelays(path=str(tmp_path / "trace.parquet")).covers([0])


@pytest.mark.parametrize(("rows", "error", "told"), messages.PARQUET)
def test_parquet_that_breaks_while_it_is_read_is_refused(tmp_path, monkeypatch, rows, error, told) -> None:
    """What pyarrow does with such files, without pyarrow: text is decoded only when the rows become Python's."""

    class Table:
        column_names: ClassVar = ["client", "t", "seconds_per_step"]

        def to_pylist(self):
            raise error

    parquet = SimpleNamespace(
        read_metadata=lambda path: SimpleNamespace(num_rows=rows), read_table=lambda path: Table()
    )
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(parquet=parquet))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    (tmp_path / "trace.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=told):
        RecordedDelays(path=str(tmp_path / "trace.parquet")).covers([0])


def test_a_parquet_file_is_read_like_a_csv_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet recordings need pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"client": [0, 0, 1], "t": [0.0, 10.0, 0.0], "seconds_per_step": [2.0, 4.0, 0.5]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "trace.parquet")
    law = RecordedDelays(path=str(tmp_path / "trace.parquet"))
    assert (law.expected(0, 0, steps=1), law.pace(0, 1, 0.0)) == (3.0, 1.0)


# ---------------------------------------------------------------- network


def test_an_offset_of_each_client_is_added_to_every_job() -> None:
    law = Offset(low=10.0, high=100.0)
    w = world(ConstantDelays(mean=7.0, jitter=0.0), network=law)
    for client in (0, 1):
        trip = w.time_job(client, 0, LocalWork(), 10, 0.0)
        assert 17 < trip.duration < 107
        assert trip == w.time_job(client, 5, LocalWork(), 10, 300.0)
        assert trip.expected == trip.duration
    assert w.time_job(0, 0, LocalWork(), 10, 0.0) != w.time_job(1, 0, LocalWork(), 10, 0.0)


def test_a_job_is_download_training_and_upload() -> None:
    law = Bandwidth(low=8.0, high=8.0, latency=0.5, upload=0.5)
    w = world(ConstantDelays(mean=10.0, jitter=0.0), network=law, payload=lambda work: (1_000_000, 2_000_000))
    # down: 8 Mbit at 8 Mbit/s, up: 16 Mbit at 4 Mbit/s, each with half a second before it
    assert w.time_job(0, 0, LocalWork(), 10, 0.0).duration == pytest.approx((0.5 + 1) + 10 + (0.5 + 4))


def test_a_recorded_bandwidth_changes_under_way(tmp_path: Path) -> None:
    law = network.RecordedBandwidth(path=written(tmp_path, GOOD))
    # 40 Mbit from 8 on: 16 at 8 Mbit/s until 10, then 24 at 4 Mbit/s
    assert law.transfer(0, 0, 5_000_000, 8.0, up=False) == pytest.approx(2 + 6)


def test_a_network_that_collapses_was_not_to_be_expected(tmp_path: Path) -> None:
    law = network.RecordedBandwidth(path=written(tmp_path, "client,t,mbps\n0,0,8\n0,5,0.01\n"))
    w = world(ConstantDelays(mean=10.0, jitter=0.0), network=law, payload=lambda work: (1_000_000, 1_000_000))
    # 1 s down and 10 s of training; then 8 Mbit take 800 s, where at dispatch one would have guessed 1
    trip = w.time_job(0, 0, LocalWork(), 10, 0.0)
    assert (trip.duration, trip.expected) == pytest.approx((1 + 10 + 800, 1 + 10 + 1))


def test_training_starts_when_the_download_is_done() -> None:
    law = Changing(delays=ConstantDelays(mean=10.0, jitter=0.0), at=(5.0,), factors=(2.0,))
    w = world(law, network=Bandwidth(low=8.0, high=8.0, latency=0.0, upload=1.0), payload=lambda work: (2_000_000, 0))
    # down until 2, then 3 s at the old pace and 7 at twice the time
    assert w.time_job(0, 0, LocalWork(), 10, 0.0).duration == pytest.approx(2 + 3 + 14)


def test_the_bytes_are_those_of_the_model_and_what_goes_with_it() -> None:
    layout = Layout((Slice("w", (10,), 0, 10, "param"),))
    payload = Payload.of(contract_of(FedAsync()), torch.zeros(10), layout)
    assert payload(LocalWork()) == (40, 40)
    assert payload(LocalWork(extras={"basis": torch.zeros(5)})) == (60, 40)
    assert Payload.of(contract_of(Local()), torch.zeros(10), layout)(LocalWork()) == (0, 0)  # alone, nothing travels


def test_large_draws_are_slow_as_with_delays() -> None:
    law = Bandwidth(low=5.0, high=50.0)
    assert all(5 < law.mbps(0, client) < 50 for client in range(100))
    assert law.transfer(0, 0, 10**6, 0.0, up=True) > law.transfer(0, 0, 10**6, 0.0, up=False)
    assert Instant().transfer(0, 0, 10**9, 0.0, up=True) == 0
