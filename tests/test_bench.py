"""The scripts of bench/ run at a very small scale."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from offbeat.core.strategies import REGISTRY, FedAsync
from offbeat.engine.trace import Trace
from offbeat.presets import load
from waiting import wait_until

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(autouse=True)
def _restore_threads():
    """Restore the number of threads, which the scripts set to one."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def load_script(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """Import a script of bench/ as a module."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, module)  # dataclasses look up their module
    patch.syspath_prepend(BENCH)  # for the modules that scripts share
    spec.loader.exec_module(module)
    return module


def test_engine_benchmark(monkeypatch, capsys):
    engine = load_script("engine", monkeypatch)
    monkeypatch.setattr(engine, "ALTERNATIONS", 1)
    engine.rate(updates=50, repeats=1)
    engine.memory(clients=2_000)
    engine.million(clients=2_000, updates=20)
    engine.overhead(jobs=2)
    rate, simpy, batched, by_hand, memory, million, overhead = capsys.readouterr().out.splitlines()
    assert re.match(r"rate: [\d,]+ updates per second of CPU \(median of 1;", rate)
    assert re.match(r"engine: an update / a bare timeout of SimPy = [\d.]+ \(median of 1, ", simpy)
    assert re.match(r"engine: an update, worker batched / a bare timeout of SimPy = [\d.]+ \(median of 1, ", batched)
    assert re.match(r"engine: an update by hand / a bare timeout of SimPy = [\d.]+ \(median of 1, ", by_hand)
    assert re.match(r"memory: \d+ MB with 2,000 clients, 1,000 at work", memory)
    assert re.match(r"million: \d+ MB with 2,000 clients of an experiment .*, 20 updates in [\d.]+ s", million)
    assert re.match(r"overhead: engine / plain loop = \d+\.\d+ \(median of 1, ", overhead)


def test_the_hand_written_loop_and_blocks_write_the_same_rows_as_the_engine(monkeypatch):
    engine = load_script("engine", monkeypatch)
    run, loop, blocks = Trace(), Trace(), Trace()
    engine.null_engine(7, 40, run, FedAsync()).run()
    engine.null_engine(7, 40, blocks, FedAsync(), engine.Batched(engine.NullStack())).run()
    assert blocks.digest() == run.digest()
    engine.run_by_hand(7, 40, loop, FedAsync())
    all_rows = "SELECT * FROM trace WHERE kind != 'stop' ORDER BY seq"
    events = "SELECT now, kind, client, ticket, version, base_version, steps, examples, bytes FROM trace "
    events += "WHERE kind IN ('dispatch', 'arrive') ORDER BY seq"
    assert list(loop.rows(events)) == list(run.rows(events))
    assert len(list(loop.rows(all_rows))) == len(list(run.rows(all_rows))) == 7 + 40 + 39
    commits = "SELECT now, version FROM commits ORDER BY seq"
    assert list(loop.rows(commits)) == list(run.rows(commits))


def test_worker_benchmark(monkeypatch, capsys):
    workers = load_script("workers", monkeypatch)
    monkeypatch.setattr(workers, "ROUNDS", 1)
    monkeypatch.setattr(workers, "EXAMPLES", 8)
    monkeypatch.setitem(workers.WORKLOADS, "W2", replace(workers.WORKLOADS["W2"], updates=20))
    names = ("inline", "processes:1", "batched:1")
    workers.measure("W2", names)
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("W2: 7,850 parameters, 20 jobs; the plain loop takes ")
    for row, name in zip(rows, names, strict=True):
        assert re.match(rf"W2: {name} / plain loop = \d+\.\d+ \(median of 1, \d+\.\d+ to \d+\.\d+\); CPU time", row)


def test_server_step_benchmark(monkeypatch, capsys):
    step = load_script("server_step", monkeypatch)
    monkeypatch.setattr(step, "STEPS", 2)
    monkeypatch.setattr(step, "MODELS", step.MODELS[:1])
    step.main(list(REGISTRY))
    printed = capsys.readouterr().out
    assert "LeNet5: 44,426 parameters in 10 tensors" in printed
    assert re.search(
        r"^LeNet5: fedavg's update / a pass = [\d.]+ \(median of 2, .*\); needs 1\.0, [\d.]+ times", printed, re.M
    )
    assert re.search(r"^LeNet5: orthofl's commit / a pass = .* needs 2\.0, .* ms; authors: 3 ms$", printed, re.M)
    assert "orthofl's update" not in printed
    assert set(step.NEEDED) == set(REGISTRY)


def test_table_of_methods(monkeypatch):
    methods = load_script("methods", monkeypatch)
    experiment = load("digits").experiment
    label, numbers = methods.run(
        ("fedavg", replace(experiment, clients=4, until=replace(experiment.until, seconds=60.0)))
    )
    cells = methods.row(label, [numbers, numbers]).split("|")
    assert len(cells) == len(methods.HEAD.split("|"))
    assert cells[1].strip() == "fedavg"
    assert re.match(r" 0\.\d+ ± 0\.000 ", cells[2])


def test_growth_benchmark(monkeypatch, capsys, tmp_path):
    scale = load_script("scale", monkeypatch)
    few = [scale.Point(clients=20, at_work=2), scale.Point(clients=200, at_work=2)]
    monkeypatch.setitem(scale.AXES, "clients", few)
    scale.main(["clients", "--events", "30", "--repeats", "1", "--json", f"{tmp_path}/s.json", "--plot", str(tmp_path)])
    printed = capsys.readouterr().out
    assert re.search(r"^ +200 +[\d.]+ +[\d.]+ +\d+$", printed, re.MULTILINE)
    assert re.search(r"exponents: time -?[\d.]+, memory -?[\d.]+; -?\d+ bytes per additional unit of clients", printed)
    assert json.loads((tmp_path / "s.json").read_text())["axes"][0]["axis"] == "clients"
    assert (tmp_path / "scale-clients.png").stat().st_size > 1000


@pytest.mark.parametrize("method", ["ca2fl", "mifa"])
def test_client_memory_benchmark(method, monkeypatch, capsys, tmp_path):
    stores = load_script("stores", monkeypatch)
    folder = tmp_path / "x"
    small = ["--clients", "30", "--parameters", "100", "--memory", "4kB", "--folder", str(folder)]
    stores.main([method, *small])
    printed = capsys.readouterr().out
    assert len(re.findall(r"^checkpoint: [\d.]+ s, [+-][\d.]+ GB on disk$", printed, re.MULTILINE)) == 3
    assert re.search(r"^first updates: 3\d updates, [\d.]+ ms wall time and [\d.]+ ms CPU", printed, re.MULTILINE)
    assert printed.count("second updates: restored in ") == 2
    assert not folder.exists()


# ---------------------------------------------------------------- the page of results


def test_a_printed_line_is_parsed_with_spread_and_further_text(monkeypatch):
    benchmark_page, measurement = load_script("benchmark_page", monkeypatch), load_script("measurement", monkeypatch)
    wall, cpu = measurement.format_median([0.3, 0.1, 0.2]), measurement.format_median([0.4])
    line = f"W2: batched:1 / plain loop = {wall}; CPU time of all cores {cpu}"
    (ratio,) = benchmark_page.parse_ratios([line, "W2: 7,850 parameters, 600 jobs", ""])
    assert (ratio.name, ratio.contender, ratio.reference, ratio.median) == ("W2", "batched:1", "plain loop", 0.2)
    assert ratio.cell == "0.200 (median of 3, 0.100 to 0.300)"
    assert ratio.more == "CPU time of all cores 0.400 (median of 1, 0.400 to 0.400)"


def test_many_values_are_summarized_by_the_interval_of_the_median(monkeypatch):
    benchmark_page, measurement = load_script("benchmark_page", monkeypatch), load_script("measurement", monkeypatch)
    # ranks 25/2 -+ 0.98 sqrt(25) = 7.6 and 17.4 of 0 to 24, rounded down
    text = measurement.format_median([float(i) for i in range(25)])
    assert text == "12.0 (median of 25, 95 % interval 7.0 to 17.0)"
    line = f"VGG11-BN: fedavg's commit / a pass = {text}; needs 1.0, 3.3 times that; 1.000 ms"
    (ratio,) = benchmark_page.parse_ratios([line])
    assert benchmark_page.goal_cell(ratio) == "≤ 3: missed by 10 % (times needed)"


@pytest.mark.parametrize(("median", "cell"), [(0.35, "≤ 0.35: met"), (0.42, "≤ 0.35: missed by 20 %")])
def test_a_goal_is_met_or_missed_by_a_percentage(median, cell, monkeypatch):
    benchmark_page = load_script("benchmark_page", monkeypatch)
    assert benchmark_page.goal_cell(benchmark_page.Ratio("W2", "batched:1", "plain loop", median, "")) == cell
    assert benchmark_page.goal_cell(benchmark_page.Ratio("W2", "inline", "plain loop", median, "")) == ""


def test_replacing_one_part_of_the_page_does_not_change_the_other(monkeypatch, tmp_path):
    benchmark_page, page = load_script("benchmark_page", monkeypatch), tmp_path / "RESULTS.md"
    benchmark_page.write_part(benchmark_page.PEERS, "theirs", page)
    benchmark_page.write_part(benchmark_page.OURS, "first", page)
    benchmark_page.write_part(benchmark_page.OURS, "second\n\n", page)
    text = page.read_text()
    assert benchmark_page.extract_part(text, benchmark_page.PEERS) == "theirs\n"
    assert benchmark_page.extract_part(text, benchmark_page.OURS) == "second\n"
    assert text.index("second") < text.index("theirs")  # ours comes first in any order of writing
    assert text.count(benchmark_page.HEAD) == 1
    assert benchmark_page.replace_part(text, benchmark_page.OURS, "second") == text


def test_the_cpu_part_has_a_table_per_script_and_names_failed_scripts(monkeypatch):
    benchmark_page = load_script("benchmark_page", monkeypatch)
    lines = ["rate: 3 updates", "engine: an update / a bare timeout of SimPy = 30.0 (median of 7, 29.0 to 31.0)"]
    text = benchmark_page.cpu_part({"engine": lines, "workers": []}, failed=["workers"])
    row = (
        "| engine | an update | a bare timeout of SimPy | 30.0 (median of 7, 29.0 to 31.0) |  | ≤ 15: missed by 100 % |"
    )
    assert row in text
    assert "```\nrate: 3 updates\n```" in text
    assert "`bench/workers.py` failed" in text
    assert re.search(r"`make bench`; .* cores, .* GiB of memory, GPU .*; Python 3\.\d+\.\d+, offbeat .*, torch", text)


def test_a_framework_that_fails_gets_a_line_and_the_others_are_measured(monkeypatch, capsys):
    peers = load_script("peers/__main__", monkeypatch)

    def install(name: str) -> None:
        if name == "pfl":
            raise peers.PeerFailed("no such version")

    def measure(name: str, workload: str, method: str) -> str:
        if workload == "W1":
            raise peers.PeerFailed("no memory")
        return f"{workload}: {name} 1.0, {method} / plain loop = 2.000 (median of 5, 1.000 to 3.000)"

    monkeypatch.setattr(peers, "install", install)
    monkeypatch.setattr(peers, "measure", measure)
    lines, missing = peers.collect(["pfl", "fedlab"])
    assert missing == ["pfl: installation failed: no such version", "W1: fedlab, FedAvg: failed: no memory"]
    text = peers.peers_part(lines, missing)
    assert "| W2 | fedlab 1.0, FedAvg | 2.000 (median of 5, 1.000 to 3.000) |  |" in text
    assert "- W1: fedlab, FedAvg: failed: no memory" in text


def test_child_processes_of_a_framework_end_with_it(monkeypatch):
    peers = load_script("peers/__main__", monkeypatch)
    started = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    child = int(started.stdout.readline())
    peers.end_process_group(started)
    assert started.returncode == -9
    started.stdout.read()  # returns when no process has the pipe open

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
        except OSError:
            return True

    wait_until(has_ended)
