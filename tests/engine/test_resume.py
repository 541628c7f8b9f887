"""A run stopped at any moment and resumed is the run that was never stopped, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from small_world import LAYERED, LAYOUT, Surroundings, first_weight, make_engine

from offbeat.core import draws
from offbeat.core.jobs import Result
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.strategies import (
    CA2FL,
    FLANP,
    REGISTRY,
    AsoFed,
    FedAdam,
    FedAsync,
    FedAT,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedCompass,
    FedFa,
    FedOGD,
    FedPAC,
    FedProx,
    FedPSA,
    Global,
    GradMA,
    Local,
    Mifa,
    OrthoFL,
    Safa,
)  # fmt: skip
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.experiment.run import execution as runs
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.availability import Churn
from offbeat.scenario.delays import Changing, Uniform
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.faults import Corrupted, Crash, DuplicateUpload, LostUpload, Scaled
from offbeat.scenario.models import Mlp
from offbeat.scenario.network import Offset
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.training.trainer import Training

VARIANTS = {
    "fedavg": FedAvg(),
    "fedavg sampled": FedAvg(sample=2, over_select=0.5, deadline=4.0),
    "fedprox": FedProx(mu=0.5),
    "fedadam": FedAdam(lr=0.05, sample=3),
    "fedavgm": FedAvgM(sample=2, over_select=0.5, deadline=4.0),
    "fedasync": FedAsync(),
    "fedasync limited": FedAsync(concurrency=2),
    "fedasync weighted": FedAsync(mode="delta", client_weight="examples"),
    "fedbuff": FedBuff(k=3),
    "fedbuff excluding": FedBuff(k=3, exclude_buffered=True, concurrency=3),
    "ca2fl": CA2FL(k=3),
    "ca2fl limited": CA2FL(k=2, lr=0.5, concurrency=2),
    "fedfa": FedFa(k=3),
    "fedfa deltas": FedFa(k=3, queue="deltas", concurrency=2),
    "fedpac": FedPAC(),
    "fedpac sampled": FedPAC(sample=2, over_select=0.5, deadline=4.0, combine=False),
    "gradma": GradMA(),
    "gradma memory": GradMA(beta2=0.5, memory_num=2, sample=3, deadline=6.0),
    "fedat": FedAT(tiers=2),
    "fedat ratio": FedAT(ratio=1.5, smooth=1, lam=0.0, sample=1, deadline=4.0, retier=3),
    "safa": Safa(),
    "safa capped": Safa(lag=1, sample=2, cap=2.5),
    "mifa": Mifa(),
    "mifa ticking": Mifa(epoch=1.5, decay=True, wait="no_wait"),
    "flanp": FLANP(),
    "flanp sampled": FLANP(n0=1, max_rounds_per_stage=2, sample=0.5, deadline=4.0),
    "orthofl": OrthoFL(),
    "orthofl limited": OrthoFL(concurrency=2, max_staleness=4),
    "orthofl chain": OrthoFL(reference="chain", first_alpha=1.0),
    "orthofl pairwise": OrthoFL(projection="pairwise"),
    "aso_fed": AsoFed(),
    "aso_fed limited": AsoFed(concurrency=2, dynamic_step=False),
    "fedpsa": FedPSA(buffer=2, queue=5, gamma=0.5, sketch=3),
    "fedpsa excluding": FedPSA(buffer=3, thermometer=False, temperature=0.1, exclude_buffered=True, concurrency=3),
    "fed_ogd": FedOGD(),
    "fed_ogd limited": FedOGD(epoch=1.5, combine="sum_of_means", concurrency=2),
    "fed_ogd uncached": FedOGD(cache=False, project="always"),
    "fed_ogd differences": FedOGD(upload="difference"),
    "ca2fl evicting": CA2FL(k=3, evict_after=2.0),
    "mifa evicting": Mifa(evict_after=2.0),
    "fed_ogd evicting": FedOGD(epoch=1.5, evict_after=2.0),
    "safa evicting": Safa(lag=1, sample=2, cap=2.5, evict_after=2.0),
    "local": Local(),
    "global": Global(),
    "fedcompass": FedCompass(q_min=2, q_max=6),
    "fedcompass momentum": FedCompass(
        q_min=2, q_max=6, momentum=True, normalized=True, discount="aggregation", concurrency=3
    ),
    "fedcompass flushed": FedCompass(q_min=2, q_max=6, flush_on_stop=True, statistics="replace"),
}


def world() -> Surroundings:
    """Three speeds, crashes, a slow job and a client that comes and goes."""
    return Surroundings(
        {0: 1.0, 1: 1.7, 2: 3.1, 3: 2.3},
        crashes={(0, 3), (2, 1)},
        slow={(1, 2): 40.0},
        away={3: [(5.0, 9.0), (20.0, 26.0)]},
    )


def engine_in(folder: Path, strategy, seconds=60.0, surroundings=None, memory=None, **more):
    layout = LAYERED if isinstance(strategy, FedPAC) else LAYOUT  # a head needs a body

    def training(job):
        noise = draws.uniform(0, "training", job.client, job.index)
        rule = job.work.rule or PLAIN_RULE
        extras = {name: torch.linspace(noise, 1.0, length) for name, length in rule.uploads(layout).items()}
        memory = dict.fromkeys(rule.memory, job.base * noise)
        return Result(job.ticket, job.base * 0.9 + noise, job.num_examples, 1, extras, memory)

    folder.mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder / "checkpoint", external=memory)
    files = {"trace": Trace(folder / "run.sqlite"), "checkpoints": checkpoints, "checkpoint_every": 1e9}
    settings = {"until": Until(seconds=seconds), "layout": layout, "train": training, "memory": memory, **files, **more}
    return make_engine(strategy, surroundings or world(), evaluate=first_weight, evaluate_every=2.5, **settings)


def finish(engine):
    outcome = engine.run()
    digest = engine.trace.digest()
    engine.trace.close()
    return digest, outcome.model.tolist(), outcome.reason


def troubled(folder: Path, strategy, seconds=100.0):
    """Clients that come and go, slow down, crash and cheat, over a network that loses and repeats what they send."""
    surroundings = SimulatedWorld(
        delays=Changing(delays=Uniform(low=0.5, high=3.0), at=(20.0, 40.0), factors=(3.0, 0.5), share=0.5),
        counts=ExampleCounts.constant(4, 10),
        seed=0,
        network=Offset(low=0.0, high=0.5),
        availability=Churn(up=15.0, down=3.0),
        faults=(Crash(), LostUpload(), DuplicateUpload(probability=0.6, within=2.0), Corrupted(), Scaled(share=0.25)),
    )
    # without so short a timeout a synchronous round would do little but wait
    return engine_in(folder, strategy, seconds, surroundings, timeout=3.0)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_stopped_after_any_number_of_events_continues_as_if_nothing_had_happened(tmp_path, name):
    stop_again_and_again(engine_in, tmp_path, VARIANTS[name])


@pytest.mark.parametrize(
    "name", ["fedasync", "fedasync limited", "fedavg sampled", "fedbuff excluding", "fed_ogd", "fedcompass", "safa"]
)
def test_stopped_runs_with_losses_and_faults_continue_too(tmp_path, name):
    kinds = stop_again_and_again(troubled, tmp_path, VARIANTS[name])
    assert {"dispatch", "arrive", "lost", "duplicate", "back"} <= kinds


def finish_with_deaths(make_engine, events):
    """Run to the end although the process dies after every few events; return the result and the number of deaths."""
    deaths = 0
    while True:
        engine = make_engine()
        engine.checkpoint_every = 0.0  # after every event
        engine.restore()
        die_after(engine, events)
        try:
            return finish(engine), deaths
        except KeyboardInterrupt:
            deaths += 1
            engine.trace.flush()  # rows the checkpoint does not know of
            engine.trace.db.close()


def stop_again_and_again(make, tmp_path: Path, strategy) -> set[str]:
    """Compare a run that dies again and again with an uninterrupted one; return the kinds of rows in the trace."""
    whole = finish(make(tmp_path / "whole", strategy))
    result, deaths = finish_with_deaths(lambda: make(tmp_path / "stopped", strategy), events=5)
    assert deaths >= 10
    assert result == whole
    trace = Trace(tmp_path / "whole" / "run.sqlite")
    kinds = {kind for (kind,) in trace.rows("SELECT DISTINCT kind FROM trace")}
    trace.close()
    return kinds


def die_after(engine, events):
    """The process dies when the last of these events is handled and no checkpoint knows of it yet."""
    handle, left = engine._handle, events

    def counting(*due):
        nonlocal left
        handle(*due)
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    engine._handle = counting


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path):
    whole = finish(engine_in(tmp_path / "whole", FedAsync()))
    stopped = engine_in(tmp_path / "stopped", FedAsync(), seconds=7.0)
    stopped.run()
    stopped.trace.close()
    again = engine_in(tmp_path / "stopped", FedAsync())
    again.restore()
    assert finish(again) == whole


def test_the_variants_cover_the_registry():
    assert {type(s) for s in VARIANTS.values()} == set(REGISTRY.values())


# ---------------------------------------------------------------- the real thing: SIGKILL


def _child(folder: str, worker: str) -> None:
    runs.execute_run(runs.Run(Path(folder)), checkpoint_every=0.0, worker=worker)


def _start(folder: Path, worker: str = "inline") -> multiprocessing.process.BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["offbeat.experiment.run.execution", "sklearn.datasets"])
    child = context.Process(target=_child, args=(str(folder), worker))
    child.start()
    return child


FEW, MANY = 5, 20  # times one run is killed: in make test, and in make test-long
KILLED = [
    FedAsync(concurrency=6), FedBuff(k=3), FedAvg(sample=4), OrthoFL(), AsoFed(lr=0.02), FedPSA(buffer=3, queue=20),
    FedOGD(lr_local=0.05, lr_global=0.05), Local(), Global(), FedCompass(q_min=2, q_max=10),
    FedProx(mu=0.5, sample=4), FedAdam(lr=0.01, sample=4), FedAvgM(sample=4), CA2FL(k=3), FedFa(k=3, queue="deltas"),
    FedPAC(lr=0.05, sample=4), FedAT(tiers=3, sample=2, retier=5), FLANP(max_rounds_per_stage=3),
    Safa(lag=2, sample=2), Mifa(lr=0.05, epoch=20.0, decay=True),
    GradMA(beta2=0.5, memory_num=3, lr_local=0.05, sample=4),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
@pytest.mark.parametrize("strategy", KILLED, ids=lambda s: type(s).__name__)
def test_killed_at_random_moments_the_digest_is_the_same(tmp_path, strategy, kills):
    """SIGKILLs over one run, or over the next one where a machine that became faster is done with it before."""
    killed_often(tmp_path, strategy, ("inline",), kills)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [s for s in KILLED if isinstance(s, FedBuff | AsoFed)],  # without and with rule memory
    ids=lambda s: type(s).__name__,
)
def test_killed_runs_with_processes_and_changing_workers_have_the_same_digest(tmp_path, strategy):
    killed_often(tmp_path, strategy, ("processes:2", "processes:3", "inline"), FEW)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(s, marks=() if isinstance(s, CA2FL | OrthoFL) else pytest.mark.long, id=type(s).__name__)
        for s in KILLED
        if isinstance(s, CA2FL | Mifa | OrthoFL | Safa | FedPAC)
    ],
)
def test_killed_runs_with_client_memory_in_files_have_the_same_digest(tmp_path, strategy):
    """Two rows fit into memory; the run nobody kills has no limit."""
    killed_often(tmp_path, strategy, ("inline",), FEW, memory="10kB")


def killed_often(tmp_path, strategy, workers, most, memory=None):
    training, until = Training(epochs=2), Until(seconds=1500.0)
    experiment = Experiment(
        clients=8, model=Mlp(hidden=(16,)), training=training, strategy=strategy, until=until, evaluate_every=20.0
    )
    whole = runs.create_run(tmp_path / "whole", experiment)
    began = time.monotonic()
    runs.execute_run(whole)
    length = time.monotonic() - began
    kills = 0
    for n in range(most):
        killed = runs.create_run(tmp_path / f"killed {n}", experiment, memory=memory)
        while not killed.complete:
            child = _start(killed.folder, workers[kills % len(workers)])
            if kills < most:
                # from right at the start to about a tenth of the run, so that some progress is made between kills
                child.join(timeout=0.05 + draws.uniform(0, "kill", kills, n) * max(0.1, length / 10))
                if child.is_alive():
                    os.kill(child.pid, signal.SIGKILL)
                    kills += 1
            child.join()
            assert child.exitcode in (0, -signal.SIGKILL)
        assert killed.digest() == whole.digest()
        if kills == most:
            return
    pytest.fail(f"only {kills} kills")


@pytest.mark.slow
@pytest.mark.parametrize("i", [i if i < 8 else pytest.param(i, marks=pytest.mark.long) for i in range(20)])
def test_killed_once_at_a_random_moment_the_digest_is_the_same(tmp_path, i, reference):
    experiment, whole, length = reference
    killed = runs.create_run(tmp_path / "killed", experiment)
    child = _start(killed.folder)
    child.join(timeout=draws.uniform(1, "moment", i) * length)
    if child.is_alive():
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    runs.execute_run(killed)
    assert killed.digest() == whole


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    experiment = Experiment(
        clients=6, model=Mlp(hidden=(16,)), strategy=FedAsync(), until=Until(seconds=900.0), evaluate_every=20.0
    )
    whole = runs.create_run(tmp_path_factory.mktemp("reference") / "whole", experiment)
    began = time.monotonic()
    runs.execute_run(whole, checkpoint_every=0.0)
    return experiment, whole.digest(), time.monotonic() - began
