"""What the tests of sites share: a small experiment, and a server's half of the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from offbeat.client.training import Training
from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import REGISTRY
from offbeat.deploy import wire
from offbeat.deploy.site import Site
from offbeat.deploy.sources import Partition
from offbeat.engines.transport import Assignment, Hello, Returned
from offbeat.experiment import build, files
from offbeat.experiment.config import Experiment
from offbeat.scenario.data.synthetic import Synthetic
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import MODELS
from offbeat.scenario.partition import PARTITIONS

RUN, CLIENT = "a-run", 1


def experiment(strategy: str = "fedasync", settings: Mapping[str, Any] | None = None, **changes: Any) -> Experiment:
    """Three clients with a few hundred rows of a table, and a network of one hidden layer."""
    made = Experiment(
        name="small",
        data=Synthetic(users=3),
        model=MODELS["mlp"](),
        clients=3,
        partition=PARTITIONS["iid"](),
        strategy=REGISTRY[strategy](**(settings or {})),
        delays=Uniform(low=10.0, high=20.0),
        training=Training(batch=16, steps=4),
        seed=5,
    )
    return replace(made, **changes)


def greeting(of: Experiment, compression: str = "none", run: str = RUN) -> bytes:
    return wire.encode(wire.Greeting(run, files.dump(of), "digest", compression), run)


def site(home: Path, number: int = CLIENT) -> Site:
    return Site(home, f"site-{number}", Partition(number))


def assignment(job: Job, accepted: int | None = None) -> Assignment:
    return Assignment(
        job.ticket, job.client, job.index, job.base_version, job.base, job.work, job.num_examples, job.seed, accepted
    )


def job(
    made: build.Setup, ticket: int, index: int, base: Tensor, work: LocalWork, memory: Mapping[str, Tensor], client: int
) -> Job:
    return Job(ticket, client, index, base, index, work, made.trainer.data.size(client), memory, made.world.seed)


def returned(data: bytes, base: Tensor | None = None) -> Returned:
    message = wire.decode(data, address=7, run=RUN, base_of=lambda _: base)
    assert isinstance(message, Returned)
    return message


def result(data: bytes, base: Tensor | None = None) -> Result:
    answer = returned(data, base).answer
    assert isinstance(answer, Result), answer
    return answer


def failure(data: bytes) -> str:
    answer = returned(data).answer
    assert isinstance(answer, Failure)
    return answer.reason


def hello(data: bytes) -> Hello:
    message = wire.decode(data, address=7, run=RUN)
    assert isinstance(message, Hello)
    return message
