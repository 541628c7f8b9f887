"""The processes of a comparison, and a Ctrl-C at the worst moment."""

from __future__ import annotations

import signal
import threading
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path

from offbeat.core.errors import RunError
from offbeat.experiment.run import execution, process_pool
from offbeat.experiment.spec import experiment_files


def test_a_ctrl_c_while_processes_are_started_is_not_lost(tmp_path, monkeypatch):
    one = experiment_files.parse("{clients: 2, model: linear, until: 40updates}")
    several = [execution.create(tmp_path / name, one) for name in "ab"]
    start = SpawnProcess.start

    def then_stop(process: SpawnProcess) -> None:
        start(process)
        if not sent:
            sent.append(process)
            signal.pthread_kill(another.ident, signal.SIGINT)  # a thread of torch's, say, takes it
            time.sleep(0.2)  # until it has

    sent: list[SpawnProcess] = []
    over = threading.Event()
    another = threading.Thread(target=over.wait)
    another.start()

    monkeypatch.setattr(SpawnProcess, "start", then_stop)
    try:
        assert process_pool.execute(several, 2) is False
    finally:
        over.set()
        another.join()
    assert not any(one.complete for one in several)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_an_error_that_names_its_run_is_not_told_twice():
    for told in ("x is being run by another process", "x: no space left"):
        assert execution.of_run(Path("x"), RunError(told)) == told
    assert execution.of_run(Path("x"), RunError("no space left")) == "x: no space left"
