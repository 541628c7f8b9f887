"""Tests that models are created while no other thread uses the generators of torch."""

from __future__ import annotations

import threading

import torch

from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment
from offbeat.training.gradient import device_generators, seeded


def test_model_creation_waits_for_other_users_of_the_generators() -> None:
    experiment, made = Experiment(clients=2), list[build.Setup]()
    wanted = build.setup(experiment).trainer.binding.vector.clone()
    thread = threading.Thread(target=lambda: made.append(build.setup(experiment)))
    expected = torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist()
    with seeded(device_generators(torch.device("cpu")), 1):
        thread.start()
        thread.join(0.5)
        assert not made
        assert torch.rand(3).tolist() == expected
    thread.join()
    assert torch.equal(made[0].trainer.binding.vector, wanted)
