"""The processes of a comparison, and a Ctrl-C at the worst moment."""

from __future__ import annotations

import os
import signal
from multiprocessing.context import SpawnProcess

from offbeat.experiment import crew, files, run


def test_a_ctrl_c_while_processes_are_started_is_not_lost(tmp_path, monkeypatch):
    one = files.parse("{clients: 2, model: linear, until: 40updates}")
    several = [run.create(tmp_path / name, one) for name in "ab"]
    start = SpawnProcess.start

    def then_stop(process: SpawnProcess) -> None:
        start(process)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(SpawnProcess, "start", then_stop)
    assert crew.execute(several, 2) is False
    assert not any(one.complete for one in several)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
