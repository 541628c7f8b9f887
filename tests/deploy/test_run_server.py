"""Whole federations within one process: run folder, wire, sites, outboxes, record; everything but the network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from deploy import messages
from in_process_transport import InProcessTransport
from offbeat.cli.replay import replay
from offbeat.core.errors import ConfigError
from offbeat.core.protocol import LocalRule, LocalWork, Strategy
from offbeat.core.strategies import REGISTRY, FedAsync, FedAvg
from offbeat.deploy import message_codec
from offbeat.deploy.run_server import ServeOptions, check_servable, serve_run
from offbeat.deploy.site_client import Site
from offbeat.deploy.site_data import PartitionSource, SiteFile
from offbeat.engine.live.sites import SiteIds
from offbeat.engine.live.trace_replay import replay_trace
from offbeat.engine.until import parse_until
from offbeat.experiment import build
from offbeat.experiment.run.execution import execute_run
from offbeat.experiment.run.run_folder import Run, create_run
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import measures, trace_summary
from offbeat.scenario.delays import Replayed
from offbeat.scenario.models import Linear, Mlp
from offbeat.scenario.streaming import Growing
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import Survey
from offbeat.training.trainer import Trainer, Training

PAPERS = ("orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")


def experiment_of(strategy: Strategy, until: str = "12updates", **more) -> Experiment:
    return Experiment(
        clients=3,
        model=Linear(),
        training=Training(lr=0.05, steps=2, batch=8),
        strategy=strategy,
        until=parse_until(until),
        survey=Survey(examples=0),
        **more,
    )


def sites_in(folder: Path, count: int = 3) -> dict[int, Site]:
    return {100 + n: Site(folder / f"home-{n}", f"site-{n}", PartitionSource(n)) for n in range(count)}


def serve(run: Run, folder: Path, **terms):
    opened = partial(InProcessTransport, sites_in(folder))
    return serve_run(run, opened, ServeOptions(min_sites=3, **terms))


def retold(run: Run):
    """A simulation of what the run recorded, with each client's data where the roster says it was."""
    experiment = run.experiment()
    made = build.setup(experiment)
    numbers = SiteIds.load(run.folder / "sites.json").numbers
    placed = made.trainer.data.index
    own = ClientData.shared(*placed.pair, {client: placed.rows_of(int(name[-1])) for name, client in numbers.items()})
    trainer = Trainer(made.module, own, experiment.training, made.trainer.task, made.trainer.probe)
    with trace_summary.open_trace(run.trace_file) as db:
        return replay_trace(db, experiment.strategy, replace(made.world, clients={}), trainer, experiment.until)


@pytest.mark.parametrize("name", ["fedavg", "fedasync", *PAPERS])
def test_a_federation_is_the_simulation_of_what_it_recorded(name: str, tmp_path: Path):
    """Committed order and weights, bit for bit; ASO-Fed's memory is kept at its sites, and data grows there."""
    more = {"streaming": Growing()} if name == "aso_fed" else {}
    run = create_run(tmp_path / "run", experiment_of(REGISTRY[name](), **more))
    outcome = serve(run, tmp_path)
    assert outcome is not None
    assert outcome.updates == 12
    again = retold(run)
    assert torch.equal(again.model, outcome.model)
    assert run.complete
    assert list((run.folder / "record").iterdir()) == []


def test_one_that_was_stopped_goes_on_where_it_was(tmp_path: Path):
    run = create_run(tmp_path / "run", experiment_of(REGISTRY["orthofl"](), until="20updates"))
    opened = partial(InProcessTransport, sites_in(tmp_path))
    stopped = serve_run(run, opened, ServeOptions(min_sites=3), watch=lambda status: status.updates >= 7)
    assert stopped is not None
    assert stopped.reason == "interrupted"
    assert not run.complete
    ended = serve(run, tmp_path)
    assert ended is not None
    assert (ended.reason, ended.updates) == ("updates", 20)
    again = retold(run)
    assert torch.equal(again.model, ended.model)


def test_uploads_may_be_compressed_and_the_trace_has_the_bytes_that_came(tmp_path: Path):
    """Half precision: two bytes an entry instead of four, and a header."""
    sizes = {}
    for how in ("none", "half"):
        run = create_run(tmp_path / how, experiment_of(REGISTRY["fedbuff"](k=2)))
        outcome = serve(run, tmp_path / f"sites-{how}", compression=how)
        assert outcome is not None
        assert outcome.updates == 12
        with trace_summary.open_trace(run.trace_file) as db:
            sizes[how] = {size for (size,) in db.execute("SELECT bytes FROM trace WHERE kind = 'arrive'")}
    entries = 64 * 10 + 10  # digits: 64 pixels, 10 classes
    assert all(4 * entries < size < 4 * entries + 1000 for size in sizes["none"])
    assert all(2 * entries < size < 2 * entries + 1000 for size in sizes["half"])


def test_a_server_without_data_takes_the_model_of_a_sites_file(tmp_path: Path):
    site = tmp_path / "site.py"
    site.write_text(
        "import torch\n"
        "def model():\n    torch.manual_seed(0)\n    return torch.nn.Linear(3, 2)\n"
        "def load_data():\n    raise FileNotFoundError('only at the site')\n"
    )
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\n"
        "def model():\n    torch.manual_seed(0)\n    return torch.nn.Linear(3, 2)\n"
        "def load_data():\n    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))\n"
        "    y = (x[:, 0] > 0).long()\n    return {'train': (x[:12], y[:12]), 'test': (x[12:], y[12:])}\n"
    )
    run = create_run(tmp_path / "run", experiment_of(REGISTRY["fedasync"]()))
    sites = {100 + n: Site(tmp_path / f"home-{n}", f"site-{n}", SiteFile(own)) for n in range(2)}
    outcome = serve_run(run, partial(InProcessTransport, sites), ServeOptions(min_sites=2, model=site))
    assert outcome is not None
    assert outcome.updates == 12
    assert 0.0 <= outcome.metrics["acc"] <= 1.0  # what the sites found, of 8 test examples each
    assert len(outcome.model) == 8
    found = run.summary()
    assert found.clients == 2  # whoever came; the experiment was written for three
    assert found.surveyed == "test examples"
    assert sum(found.by_client.values()) / 2 == pytest.approx(outcome.metrics["acc"])  # both have as many
    assert ["served seconds", f"{found.seconds:.0f}"] in measures.summary_lines(found)


def test_another_strategy_is_replayed_over_the_times_that_sites_took(tmp_path: Path):
    run = create_run(tmp_path / "run", experiment_of(REGISTRY["fedasync"]()))
    serve(run, tmp_path)
    out = tmp_path / "again"
    replay(run.folder, ["strategy=orthofl"], until="20updates", out=out)
    again = Run(out)
    assert again.summary().updates == 20
    delays = again.experiment().delays
    assert isinstance(delays, Replayed)
    with trace_summary.open_trace(run.trace_file) as db:
        taken = "SELECT a.now - d.now FROM trace d JOIN trace a ON a.ticket = d.ticket AND a.kind = 'arrive'"
        first = db.execute(f"{taken} WHERE d.kind = 'dispatch' AND d.client = 0 ORDER BY d.seq").fetchone()[0]
    assert delays.seconds_per_step[0][0] == first / 2  # two steps a job
    with trace_summary.open_trace(again.trace_file) as db:
        at = db.execute("SELECT MIN(now) FROM trace WHERE kind = 'arrive' AND client = 0").fetchone()[0]
    assert at == pytest.approx(first)


def test_times_beyond_the_record_are_drawn_from_it():
    """Three jobs were recorded, of 1, 2 and 6 s a step: the first three are these, the others are among them."""
    law = Replayed(seconds_per_step=((1.0, 2.0, 6.0),))
    taken = [law.seconds(0, 0, index, 10) for index in range(200)]
    assert taken[:3] == pytest.approx([10.0, 20.0, 60.0])
    assert {round(seconds) for seconds in taken} == {10, 20, 60}
    assert taken == [law.seconds(0, 0, index, 10) for index in range(200)]


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "global"])
def test_what_every_strategy_sends_first_can_be_sent_and_is_looked_at(name: str, monkeypatch):
    encode, sent = message_codec.encode, []
    monkeypatch.setattr(message_codec, "encode", lambda order: sent.append(order) or encode(order))
    check_servable(replace(experiment_of(REGISTRY[name]()), model=Mlp()))  # FedPAC's has a body and a head
    assert sent


class Nowhere(LocalRule):
    """No dataclass: nobody could make it anew from a name and fields."""


@pytest.mark.parametrize("kind", [FedAsync, FedAvg])  # at once, and when a round begins
def test_a_rule_that_cannot_travel_is_refused_before_anything_is_started(kind: type):
    strategy = kind(work=LocalWork(rule=Nowhere()), **({"rho": 0.0} if kind is FedAsync else {}))
    with pytest.raises(ConfigError, match=messages.RULE_NO_DATACLASS):
        check_servable(experiment_of(strategy))


def test_a_simulation_is_not_replayed(tmp_path: Path):
    run = create_run(tmp_path / "run", experiment_of(REGISTRY["fedasync"]()))
    execute_run(run)
    with pytest.raises(ConfigError, match=messages.IS_SIMULATION):
        replay(run.folder)
