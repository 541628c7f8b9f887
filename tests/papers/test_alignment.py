"""The study of kappa: correlations worked by hand, and real runs that are probed, resumed, read and watched."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import offbeat
from offbeat.core.errors import ConfigError, RunError
from offbeat.core.protocol import Note
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.engine.progress import Status
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import INTERRUPTED
from offbeat.experiment.run import execution as runs
from offbeat.experiment.spec.config import Experiment
from offbeat.papers.fedpsa import alignment
from offbeat.scenario.models import Linear
from offbeat.testing import play, tiny_world
from offbeat.training.trainer import Training
from papers import messages

# kappa, and what it is set against
PAIRS = [(-0.05, 0.1), (0.3, 0.2), (0.32, 0.4), (1.0, 0.7), (0.95, 0.9)]


def test_updates_fall_into_bins_of_kappa_and_one_belongs_to_the_last() -> None:
    found = alignment.correlate(PAIRS, "align")
    bins = [(round(b.low, 12), round(b.high, 12), b.count, round(b.mean, 12)) for b in found.bins]
    assert bins == [(-0.1, 0.0, 1, 0.1), (0.3, 0.4, 2, 0.3), (0.9, 1.0, 2, 0.8)]  # empty bins are left out


def test_the_correlations_are_those_worked_by_hand() -> None:
    found = alignment.correlate(PAIRS, "align")
    assert found.updates == 5
    # means .504 and .46; sums of products .5788, of squares .82732 and .452
    assert found.pearson == pytest.approx(0.5788 / math.sqrt(0.82732 * 0.452), abs=1e-12)
    assert found.spearman == pytest.approx(1 - 6 * 2 / (5 * 24), abs=1e-12)  # the last two change places
    # centres -.05, .35, .95 and means .1, .3, .8: products .36, squares .506667 and .26
    assert found.binned_pearson == pytest.approx(0.36 / math.sqrt(0.76 / 1.5 * 0.26), abs=1e-12)
    assert found.binned_spearman == pytest.approx(1, abs=1e-12)


def test_what_does_not_vary_correlates_with_nothing() -> None:
    found = alignment.correlate([(0.5, 0.1), (0.5, 0.2)], "align")
    assert math.isnan(found.pearson)
    assert math.isnan(found.binned_spearman)


def test_it_prints_as_a_table() -> None:
    lines = str(alignment.correlate(PAIRS, "align")).splitlines()
    assert lines[0] == "kappa against align, 5 updates"
    assert lines[1] == "  update by update  Pearson 0.9465  Spearman 0.9000"
    assert lines[-1] == "   0.90 to  1.00       2    0.8000"


def test_a_trace_is_read_ticket_by_ticket() -> None:
    trace = Trace()
    for ticket, (kappa, value) in enumerate(PAIRS):
        trace.note(1.0, ticket, {"kappa": kappa})
        trace.note(2.0, ticket, {"weight": 0.2, "agreement": value})
    trace.note(3.0, 99, {"kappa": 0.5})  # still in the buffer when the run ended
    trace.flush()
    assert alignment.read_alignment(trace.db) == alignment.correlate(PAIRS, "agreement")
    with pytest.raises(RunError, match=messages.ALIGN_NONE):
        alignment.read_alignment(trace.db, "align")


def test_who_looks_on_changes_nothing_but_the_notes() -> None:
    script = "wait 1\narrive 0\narrive 1\nwait 1\narrive 0\nlose 0\nwait 1\narrive 1\narrive 0\n"
    plain = play(FedPSA(buffer=2), script, tiny_world()).log
    world = tiny_world(probe=lambda vector: vector[:4])
    watched = play(alignment.AlignmentWatcher(FedPSA(buffer=2, sketch=4), lambda vector: vector), script, world).log
    seen = [
        action for entry in watched for action in entry.actions if isinstance(action, Note) and "align" in action.values
    ]
    assert len(seen) == 5
    assert all(-1 <= note.values["align"] <= 1 for note in seen)
    kept = [[type(action) for action in entry.actions if action not in seen] for entry in watched]
    assert kept == [[type(action) for action in entry.actions] for entry in plain]


def small(**settings: object) -> Experiment:
    return Experiment(
        clients=6,
        model=Linear(),
        training=Training(lr=0.1),
        strategy=FedPSA(buffer=2, queue=10, **settings),
        until=Until(seconds=300.0),
    )


def test_a_run_is_studied_from_its_folder_or_played_again_and_watched(tmp_path: Path) -> None:
    run = runs.create_run(tmp_path / "run", small(fisher="batch"))
    runs.execute_run(run)
    read, played = alignment.read_run_alignment(run), alignment.replay_alignment(run.experiment(), examples=64)
    assert (read.against, played.against) == ("agreement", "align")
    assert played.updates - 1 <= read.updates <= played.updates  # one may wait in the buffer at the end
    with pytest.raises(ConfigError):
        alignment.replay_alignment(run.experiment(), examples=0)


def test_a_run_of_another_method_has_nothing_to_study(tmp_path: Path) -> None:
    run = runs.create_run(tmp_path / "run", replace(small(), strategy=FedAsync(), until=Until(updates=5)))
    runs.execute_run(run)
    with pytest.raises(RunError, match=messages.KAPPA_NONE):
        alignment.read_run_alignment(run)


@pytest.mark.parametrize(
    "settings", [{}, {"calibration": "real", "signal": "sensitivity"}, {"signal": "parameters", "thermometer": False}]
)
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(tmp_path: Path, settings: dict[str, object]) -> None:
    def stop(status: Status) -> bool:
        return status.updates > 20

    whole, stopped = (
        runs.create_run(tmp_path / "whole", small(**settings)),
        runs.create_run(tmp_path / "stopped", small(**settings)),
    )
    runs.execute_run(whole)
    outcome = runs.execute_run(stopped, watch=stop)
    assert outcome is not None
    assert outcome.reason == INTERRUPTED
    runs.execute_run(stopped)
    assert stopped.digest() == whole.digest()


@pytest.mark.parametrize("calibration", ["gaussian", "real"])
@pytest.mark.parametrize("labels", [torch.int64, torch.float32])
def test_a_simulation_on_your_own_tensors_needs_no_more_than_the_name(calibration: str, labels: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(20, 4, generator=g), torch.randint(0, 3, (20,), generator=g).to(labels)) for _ in range(4)]
    outputs = 1 if labels.is_floating_point else 3
    strategy = "fedpsa" if calibration == "gaussian" else offbeat.FedPSA(calibration="real", calibration_size=8)
    result = offbeat.simulate(nn.Linear(4, outputs), clients, strategy, delays=[10, 20, 30, 40], until="400s")
    assert result.summary.updates > 50
    assert result.summary.refused == {}
    assert alignment.read_alignment(result.trace.db).updates == result.summary.versions * 5
