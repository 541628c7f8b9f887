"""What the tests of sites share: a small experiment, and a server's half of the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import REGISTRY
from offbeat.deploy import message_codec
from offbeat.deploy.site_client import Site
from offbeat.deploy.site_data import PartitionSource
from offbeat.engine.live.transport import Hello, JobAnswer, JobMessage
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.data.built_in import Synthetic
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import MODELS
from offbeat.scenario.partition import PARTITIONS
from offbeat.training.trainer import Training

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
    return message_codec.encode(message_codec.Greeting(run, experiment_files.to_yaml(of), "digest", compression), run)


def site(home: Path, number: int = CLIENT) -> Site:
    return Site(home, f"site-{number}", PartitionSource(number))


def assignment(job: Job, accepted: int | None = None) -> JobMessage:
    return JobMessage(
        job.ticket, job.client, job.index, job.base_version, job.base, job.work, job.num_examples, job.seed, accepted
    )


def job(
    made: build.Setup, ticket: int, index: int, base: Tensor, work: LocalWork, memory: Mapping[str, Tensor], client: int
) -> Job:
    return Job(ticket, client, index, base, index, work, made.trainer.data.size(client), memory, made.world.seed)


def returned(data: bytes, base: Tensor | None = None) -> JobAnswer:
    message = message_codec.decode(data, address=7, run=RUN, find_base=lambda _: base)
    assert isinstance(message, JobAnswer)
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
    message = message_codec.decode(data, address=7, run=RUN)
    assert isinstance(message, Hello)
    return message
