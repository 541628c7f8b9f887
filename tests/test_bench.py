"""The scripts of bench/ still run, on a scale at which their numbers mean nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from offbeat.core.strategies import REGISTRY
from offbeat.presets import load

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(autouse=True)
def _threads():
    """The scripts measure on one; who comes after them wants his own back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def script(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    patch.syspath_prepend(BENCH)  # they share a file
    spec.loader.exec_module(module)
    return module


def test_the_engine_is_measured(monkeypatch, capsys):
    engine = script("engine", monkeypatch)
    monkeypatch.setattr(engine, "ALTERNATIONS", 1)
    engine.rate(updates=50, repeats=1)
    engine.memory(clients=2_000)
    engine.million(clients=2_000, updates=20)
    engine.overhead(jobs=2)
    rate, simpy, memory, million, overhead = capsys.readouterr().out.splitlines()
    assert re.match(r"rate: [\d,]+ updates per second of CPU \(median of 1;", rate)
    assert re.match(r"simpy: an update costs [\d.]+ bare timeouts of SimPy", simpy)
    assert re.match(r"memory: \d+ MB in all with 2,000 clients, 1,000 in flight", memory)
    assert re.match(r"million: \d+ MB in all with 2,000 clients of an experiment .*, 20 updates in [\d.]+ s", million)
    assert re.match(r"overhead: engine / plain loop = \d+\.\d+ \(median of 1;", overhead)


def test_workers_are_measured(monkeypatch, capsys):
    workers = script("workers", monkeypatch)
    monkeypatch.setattr(workers, "ROUNDS", 1)
    monkeypatch.setattr(workers, "EXAMPLES", 8)
    monkeypatch.setitem(workers.WORLDS, "W2", replace(workers.WORLDS["W2"], updates=20))
    chosen = ("inline", "processes:1", "batched:1")
    workers.measure("W2", chosen)
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("W2: 7,850 parameters, 20 jobs; the plain loop takes ")
    for row, name in zip(rows, chosen, strict=True):
        assert re.match(rf"W2: {name} / plain loop = \d+\.\d+ \(median of 1, \d+\.\d+ to \d+\.\d+\); work of ", row)


def test_a_server_step_is_measured(monkeypatch, capsys):
    step = script("server_step", monkeypatch)
    monkeypatch.setattr(step, "STEPS", 2)
    monkeypatch.setattr(step, "MODELS", step.MODELS[:1])
    step.main(list(REGISTRY))
    printed = capsys.readouterr().out
    assert "LeNet5: 44,426 parameters in 10 tensors" in printed
    assert re.search(
        r"fedavg +pass +[\d.]+ ms +update +[\d.]+ ms +[\d.]+ \( *[\d.]+- *[\d.]+\), needed +1\.0: ", printed
    )
    assert re.search(r"orthofl +pass +[\d.]+ ms +update +none +commit +[\d.]+ ms .* needed +2\.0: ", printed)
    assert set(step.NEEDED) == set(REGISTRY)


def test_the_table_of_all_methods_is_made(monkeypatch):
    methods = script("methods", monkeypatch)
    experiment = load("digits").experiment
    label, numbers = methods.run(
        ("fedavg", replace(experiment, clients=4, until=replace(experiment.until, seconds=60.0)))
    )
    cells = methods.row(label, [numbers, numbers]).split("|")
    assert len(cells) == len(methods.HEAD.split("|"))
    assert cells[1].strip() == "fedavg"
    assert re.match(r" 0\.\d+ ± 0\.000 ", cells[2])


def test_growth_is_measured(monkeypatch, capsys, tmp_path):
    scale = script("scale", monkeypatch)
    few = [scale.Point(clients=20, at_work=2), scale.Point(clients=200, at_work=2)]
    monkeypatch.setitem(scale.AXES, "clients", few)
    scale.main(["clients", "--events", "30", "--repeats", "1", "--json", f"{tmp_path}/s.json", "--plot", str(tmp_path)])
    printed = capsys.readouterr().out
    assert re.search(r"^ +200 +[\d.]+ +[\d.]+ +\d+$", printed, re.MULTILINE)
    assert re.search(r"exponents: time -?[\d.]+, memory -?[\d.]+; -?\d+ bytes", printed)
    assert json.loads((tmp_path / "s.json").read_text())["axes"][0]["axis"] == "clients"
    assert (tmp_path / "scale-clients.png").stat().st_size > 1000


@pytest.mark.parametrize("method", ["ca2fl", "mifa"])
def test_what_lies_beyond_memory_is_measured(method, monkeypatch, capsys, tmp_path):
    stores = script("stores", monkeypatch)
    folder = tmp_path / "x"
    small = ["--clients", "30", "--parameters", "100", "--memory", "4kB", "--folder", str(folder)]
    stores.main([method, *small])
    printed = capsys.readouterr().out
    assert len(re.findall(r"^checkpoint: [\d.]+ s, [+-][\d.]+ GB on disk$", printed, re.MULTILINE)) == 3
    assert re.search(r"^first answers: 3\d updates, [\d.]+ ms of wall and [\d.]+ ms of CPU each", printed, re.MULTILINE)
    assert printed.count("resumed, again: read and checked in ") == 2
    assert not folder.exists()
