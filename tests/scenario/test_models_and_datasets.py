"""The data sets that come along."""

from __future__ import annotations

import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.scenario import summaries
from offbeat.scenario.data import DATASETS, Dataset


def test_every_entry_has_a_summary() -> None:
    assert all(line and "\n" not in line for line in summaries(DATASETS).values())


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return DATASETS["digits"]().load()


def test_digits_are_divided_four_to_one_in_every_class(digits: Dataset) -> None:
    assert digits.x_train.shape[1:] == digits.x_test.shape[1:] == digits.input_shape == (1, 8, 8)
    assert len(digits.x_train) + len(digits.x_test) == 1797
    # every fifth of a class of n goes to the test set: n // 5 of them
    train, test = (torch.bincount(y, minlength=10) for y in (digits.y_train, digits.y_test))
    assert torch.equal(test, (train + test) // 5)
    assert digits.summary == "digits: 1442 training and 355 test examples, inputs 1×8×8, 10 classes"


def test_digits_are_those_of_scikit_learn_wherever_it_keeps_them(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.scenario.data.built_in.find_spec", lambda name: None)  # so it is asked itself
    asked = DATASETS["digits"]().load()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert torch.equal(getattr(asked, name), getattr(digits, name))


def test_digits_are_standardised_on_the_training_part(digits: Dataset) -> None:
    assert digits.x_train.dtype == torch.float32
    assert digits.x_train.mean().item() == pytest.approx(0, abs=1e-5)
    assert digits.x_train.std().item() == pytest.approx(1, abs=1e-5)


def test_no_digit_is_in_both_parts(digits: Dataset) -> None:
    rows = {tuple(x.flatten().tolist()) for x in digits.x_train}
    assert not any(tuple(x.flatten().tolist()) in rows for x in digits.x_test)


def test_digits_are_the_same_every_time(digits: Dataset) -> None:
    again = DATASETS["digits"]().load()
    assert torch.equal(again.x_train, digits.x_train)
    assert torch.equal(again.y_test, digits.y_test)


def test_a_data_set_without_examples_is_refused() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2)
    with pytest.raises(DataError, match="data set 'mine': 0 test inputs, 0 labels"):
        Dataset("mine", x, y, x[:0], y[:0], num_classes=None)
