"""Parallel runs handle a Ctrl-C while their processes are started."""

from __future__ import annotations

import signal
import threading
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path

from offbeat.core.errors import RunError
from offbeat.experiment.run import execution, parallel_runs, run_group
from offbeat.experiment.spec import experiment_files


def test_a_ctrl_c_while_processes_are_started_is_not_lost(tmp_path, monkeypatch):
    experiment = experiment_files.parse_experiment("{clients: 2, model: linear, until: 40updates}")
    runs = [execution.create_run(tmp_path / name, experiment) for name in "ab"]
    start = SpawnProcess.start

    def start_and_interrupt(process: SpawnProcess) -> None:
        start(process)
        if not started:
            started.append(process)
            signal.pthread_kill(thread.ident, signal.SIGINT)  # received by another thread, such as one of torch
            time.sleep(0.2)

    started: list[SpawnProcess] = []
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()

    monkeypatch.setattr(SpawnProcess, "start", start_and_interrupt)
    try:
        assert parallel_runs.execute_in_parallel(runs, 2) is False
    finally:
        over.set()
        thread.join()
    assert not any(run.complete for run in runs)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_an_error_that_names_its_run_gets_no_second_name():
    for message in ("x is being run by another process", "x: no space left"):
        assert run_group.describe_failure(Path("x"), RunError(message)) == message
    assert run_group.describe_failure(Path("x"), RunError("no space left")) == "x: no space left"
