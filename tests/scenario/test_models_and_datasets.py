"""The models and data sets that come along."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.vector import flatten
from offbeat.scenario.data import DATASETS, Dataset
from offbeat.scenario.models import MODELS, Cnn, Linear, Mlp
from offbeat.scenario.registry import find, summaries


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_a_function_of_the_seed_and_global_random_state_stays(name: str) -> None:
    model = MODELS[name]()
    before = torch.get_rng_state()
    one = flatten(model.build((1, 8, 8), 10, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(flatten(model.build((1, 8, 8), 10, seed=1)), one)
    assert not torch.equal(flatten(model.build((1, 8, 8), 10, seed=2)), one)


def test_sizes_by_hand() -> None:
    sizes = {name: len(flatten(model().build((1, 8, 8), 10, seed=1))) for name, model in MODELS.items()}
    # linear 64*10 + 10;  mlp 64*64 + 64 + 64*10 + 10;
    # cnn 16*9 + 16, 32*16*9 + 32, two poolings leave 2×2: 128*10 + 10
    assert sizes == {"linear": 650, "mlp": 4810, "cnn": 160 + 4640 + 1290}


@pytest.mark.parametrize(
    ("model", "shape"), [(Linear(), (7,)), (Mlp(hidden=(5, 4)), (3, 2)), (Cnn(channels=(2,)), (3, 5, 9)), (Cnn(), (1, 28, 28))]
)
def test_models_fit_the_inputs_they_were_built_for(model: Any, shape: tuple[int, ...]) -> None:
    module = model.build(shape, 4, seed=1)
    assert module(torch.zeros(6, *shape)).shape == (6, 4)


def test_models_are_values() -> None:
    assert Mlp(hidden=[8, 4]) == Mlp(hidden=(8, 4))  # type: ignore[arg-type]
    assert hash(Cnn(channels=(4,))) == hash(Cnn(channels=(4,)))
    assert repr(Cnn()) == "Cnn(channels=(16, 32))"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mlp(hidden=()), r"mlp hidden = \(\): at least one layer"),
        (lambda: Mlp(hidden=(4, 0)), r"mlp hidden = \(4, 0\)"),
        (lambda: Cnn(channels=()), r"cnn channels = \(\)"),
        (lambda: Cnn().build((64,), 10, 1), r"cnn needs inputs \(channels, height, width\), got shape \(64,\): use mlp or linear"),
        (lambda: Cnn(channels=(4, 4, 4, 4)).build((1, 8, 8), 10, 1), "4 poolings leave nothing of 8×8 inputs"),
        (lambda: Linear().build((4,), 0, 1), "num_classes = 0"),
        (lambda: find("model", MODELS, "cn"), "unknown model 'cn': did you mean 'cnn'"),
    ],
)
def test_models_that_cannot_be_built_say_why(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_every_entry_has_a_summary() -> None:
    for registry in (MODELS, DATASETS):
        assert all(line and "\n" not in line for line in summaries(registry).values())


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return DATASETS["digits"]()


def test_digits_are_divided_four_to_one_in_every_class(digits: Dataset) -> None:
    assert digits.x_train.shape[1:] == digits.x_test.shape[1:] == digits.input_shape == (1, 8, 8)
    assert len(digits.x_train) + len(digits.x_test) == 1797
    # every fifth of a class of n goes to the test set: n // 5 of them
    train, test = (torch.bincount(y, minlength=10) for y in (digits.y_train, digits.y_test))
    assert torch.equal(test, (train + test) // 5)
    assert digits.summary == "digits: 1442 training and 355 test examples, inputs 1×8×8, 10 classes"


def test_digits_are_standardised_on_the_training_part(digits: Dataset) -> None:
    assert digits.x_train.dtype == torch.float32
    assert digits.x_train.mean().item() == pytest.approx(0, abs=1e-5)
    assert digits.x_train.std().item() == pytest.approx(1, abs=1e-5)


def test_no_digit_is_in_both_parts(digits: Dataset) -> None:
    rows = {tuple(x.flatten().tolist()) for x in digits.x_train}
    assert not any(tuple(x.flatten().tolist()) in rows for x in digits.x_test)


def test_digits_are_the_same_every_time(digits: Dataset) -> None:
    again = DATASETS["digits"]()
    assert torch.equal(again.x_train, digits.x_train)
    assert torch.equal(again.y_test, digits.y_test)


def test_a_data_set_without_examples_is_refused() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2)
    with pytest.raises(DataError, match="data set 'mine': 0 test inputs, 0 labels"):
        Dataset("mine", x, y, x[:0], y[:0], num_classes=None)
