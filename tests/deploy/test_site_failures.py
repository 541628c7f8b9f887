"""Sites and Flower's nodes in trouble: what one of them sends or fails at is its own affair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import site_harness

from deploy import messages
from offbeat.core.errors import DataError
from offbeat.core.strategies import REGISTRY
from offbeat.deploy import message_codec, run_server
from offbeat.deploy.result_store import ResultStore
from offbeat.engine.live.journal import FRAME_HEADER
from offbeat.engine.live.transport import Question, Scores
from offbeat.experiment import build
from offbeat.experiment.run.execution import Unfinished
from offbeat.experiment.run.run_folder import create_run


def test_a_question_that_a_sites_data_cannot_answer_is_answered_with_nothing(tmp_path: Path, monkeypatch) -> None:
    """Else it would be taken for a site that is gone, and its work be given up."""
    of = site_harness.experiment()
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(of))

    def raises(model):
        raise DataError("its test file is gone")

    assert site._current is not None
    monkeypatch.setattr(site._current.training, "scores", raises, raising=False)
    model = build.setup(of).world.model
    answer = message_codec.decode(
        site.handle(message_codec.encode(Question(1.0, 2, model), site_harness.RUN)), address=7, run=site_harness.RUN
    )
    assert answer == Scores(7, 1.0, 2, 0, {})


def test_what_a_killed_site_was_writing_is_swept_away(tmp_path: Path) -> None:
    of = site_harness.experiment()
    site_harness.site(tmp_path).handle(site_harness.greeting(of))
    folder = ResultStore(tmp_path, site_harness.RUN).folder
    (folder / "5.result.0123abcd.tmp").write_bytes(bytes(1000))
    site_harness.site(tmp_path).handle(site_harness.greeting(of))
    assert sorted(path.name for path in folder.iterdir()) == ["greeting"]


def test_a_run_that_cannot_go_on_closes_what_it_opened(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", replace(site_harness.experiment(), strategy=REGISTRY["fedbuff"](k=2)))
    (run.folder / run_server.RECORD_FOLDER).mkdir()
    (run.folder / run_server.RECORD_FOLDER / "000001.facts").write_bytes(
        FRAME_HEADER.pack(4, bytes(32)) + b"spoilt facts"
    )
    closed = []

    class Line:
        def close(self) -> None:
            closed.append(True)

    with pytest.raises(Unfinished, match=messages.JOURNAL_DAMAGED):
        run_server.serve_run(run, lambda *_: Line())  # type: ignore[arg-type, return-value]
    assert closed == [True]
