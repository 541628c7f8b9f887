"""Counts of transferred bytes, of evaluated models and of the bytes that a server stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.protocol import Dispatch, Layout, LocalWork, Slice
from offbeat.core.strategies import FedAvg
from offbeat.core.strategy_contract import contract_of
from offbeat.engine.model_evaluation import ModelEvaluator, state_bytes
from offbeat.engine.trace import Traffic

MODEL = torch.zeros(4)  # 16 bytes
LAYOUT = Layout((Slice("w", (4,), 0, 4, "param"),))


@dataclass(frozen=True)
class Keeping:
    clients_keep: ClassVar[bool] = True


@dataclass(frozen=True)
class Alone:
    about: ClassVar[About] = About("alone", keeps="nothing", uploads="nothing")

    def model_for(self, state: Any, client: int) -> Tensor:
        model: Tensor = state[client]
        return model


def test_models_and_extras_are_counted_both_ways() -> None:
    traffic = Traffic.of(contract_of(FedAvg()), MODEL)
    basis = torch.zeros(3, dtype=torch.float64)  # 24 bytes
    assert traffic.count_download(Dispatch(0, MODEL, LocalWork(extras={"basis": basis}))) == 16 + 24
    assert traffic.count_upload(0, MODEL, {"sketch": basis}) == 16 + 24


def test_a_client_that_keeps_its_upload_is_not_sent_it_again() -> None:
    traffic = Traffic.of(contract_of(Keeping()), MODEL)
    local = torch.ones(4)
    assert traffic.count_download(Dispatch(0, local)) == 16  # nothing uploaded yet
    traffic.count_upload(0, local, {})
    assert traffic.count_download(Dispatch(0, local)) == 0
    assert traffic.count_download(Dispatch(0, local.clone())) == 0  # a store may hand out copies
    assert traffic.count_download(Dispatch(0, MODEL)) == 16
    assert traffic.count_download(Dispatch(0, MODEL)) == 0  # it was lost, and has it still
    assert traffic.count_download(Dispatch(1, local)) == 16  # another client


def test_clients_that_keep_nothing_are_sent_every_model() -> None:
    traffic = Traffic.of(contract_of(FedAvg()), MODEL)
    traffic.count_upload(0, MODEL, {})
    assert traffic.count_download(Dispatch(0, MODEL)) == 16
    assert traffic.client_models == {}


def test_a_method_that_shares_nothing_moves_nothing() -> None:
    traffic = Traffic.of(contract_of(Alone()), MODEL)
    assert traffic.count_download(Dispatch(0, MODEL)) == traffic.count_upload(0, MODEL, {}) == 0
    assert traffic.wasted_upload() == 0


def recording_evaluator(strategy: Any) -> tuple[ModelEvaluator, list[float]]:
    """Return an evaluator and the first entries of the models that it evaluates."""
    seen: list[float] = []

    def evaluate(model: Tensor) -> dict[str, float]:
        seen.append(float(model[0]))
        return {"acc": seen[-1]}

    return ModelEvaluator(evaluate, contract_of(strategy), LAYOUT), seen


def test_the_same_model_is_evaluated_once() -> None:
    evaluator, seen = recording_evaluator(FedAvg())
    for model in (MODEL, MODEL, torch.ones(4), MODEL):
        evaluator(None, model, [0], {})
    assert seen == [0.0, 1.0, 0.0]


def test_without_a_shared_model_the_mean_over_clients_is_reported_and_only_new_models_are_evaluated() -> None:
    evaluator, seen = recording_evaluator(Alone())
    models = {0: torch.tensor([1.0]), 1: torch.tensor([3.0])}
    assert evaluator(models, MODEL, models, {}) == {"acc": 2.0}
    models[1] = torch.tensor([6.0])
    assert evaluator(models, MODEL, models, {}) == {"acc": 3.5}
    assert len(seen) == 3


@dataclass
class Holding:
    model: Tensor
    version: int
    numbers: dict[int, int]
    tensors: dict[int, Tensor]
    pairs: list[tuple[int, Tensor]]


def test_a_tensor_held_in_several_places_counts_once() -> None:
    a, b = torch.zeros(4), torch.zeros(10)
    assert state_bytes(Holding(a, 3, {0: 1}, {0: a, 1: b}, [])) == 16 + 40
    assert state_bytes(Holding(a, 3, {}, {0: b[:2], 1: b[5:]}, [])) == 16 + 40  # views hold all of their memory
    assert state_bytes(Holding(a, 3, {}, {}, [(1, b)])) == 16 + 40


def test_numbers_among_tensors_hide_nothing_and_many_numbers_are_passed_over() -> None:
    b = torch.zeros(10)
    assert state_bytes([None, b]) == 40
    assert state_bytes({"n": 3, "t": b}) == 40
    assert state_bytes([0] * 1_000_000) == 0
