"""Data sets without files: digits, synthetic data and stand-ins."""

from __future__ import annotations

import pytest
import torch

from offbeat import presets
from offbeat.experiment.spec.config import name_of
from offbeat.scenario.data import DATASETS, Dataset
from offbeat.scenario.data.built_in import STAND_IN_SHAPES, StandIn, Synthetic


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


def test_digits_are_loaded_by_scikit_learn_if_its_file_is_not_found(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.scenario.data.built_in.find_spec", lambda name: None)  # so it is asked itself
    asked = DATASETS["digits"]().load()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert torch.equal(getattr(asked, name), getattr(digits, name))


def test_no_digit_is_in_both_parts(digits: Dataset) -> None:
    rows = {tuple(x.flatten().tolist()) for x in digits.x_train}
    assert not any(tuple(x.flatten().tolist()) in rows for x in digits.x_test)


def test_digits_are_standardised_on_the_training_part_and_the_same_every_time(digits: Dataset) -> None:
    assert digits.x_train.dtype == torch.float32
    assert digits.x_train.mean().item() == pytest.approx(0, abs=1e-5)
    assert digits.x_train.std().item() == pytest.approx(1, abs=1e-5)
    again = DATASETS["digits"]().load()
    assert torch.equal(again.x_train, digits.x_train)
    assert torch.equal(again.y_test, digits.y_test)


def test_synthetic_is_a_function_of_its_settings():
    data = Synthetic(users=4).load()
    assert torch.equal(data.x_train, Synthetic(users=4).load().x_train)
    assert not torch.equal(data.x_train[0], Synthetic(users=4, seed=1).load().x_train[0])
    sizes = data.groups.bincount() + data.test_groups.bincount()
    assert sizes.min() >= 50
    assert data.groups.bincount().tolist() == [int(0.9 * n) for n in sizes.tolist()]
    assert data.group_names == ("user 0", "user 1", "user 2", "user 3")
    assert data.input_shape == (60,)
    assert Synthetic(users=4, inputs=10).load().input_shape == (10,)


def test_alpha_shifts_all_classes_alike_and_so_changes_no_label():
    # W_k = u_k + Z: x W_k + b_k = x Z + z + u_k (sum of x + 1), the same for every class
    one, two = Synthetic(alpha=0.0, users=4).load(), Synthetic(alpha=1.0, users=4).load()
    assert torch.equal(one.y_train, two.y_train)


def test_beta_moves_the_inputs():
    def spread(beta: float) -> float:
        data = Synthetic(alpha=0.0, beta=beta, users=30).load()
        means = torch.stack([data.x_train[data.groups == k].mean() for k in range(30)])
        return means.std().item()

    # a user's mean input is B_k + (mean of 60 draws of N(0, 1)): deviation sqrt(beta² + 1/60), so 0.13 and 2.00
    assert spread(0.0) == pytest.approx(0.13, abs=0.06)
    assert spread(2.0) == pytest.approx(2.0, rel=0.4)
    # with iid nobody's inputs are moved: the mean of n·60 values of variance below 1, n > 300, is below 5/sqrt(18000)
    assert abs(Synthetic(users=6, iid=True).load().x_train.mean().item()) < 0.04


@pytest.mark.parametrize("name", sorted(STAND_IN_SHAPES))
def test_a_stand_in_has_the_form_of_its_data_set(name):
    data = StandIn(of=name).load()
    assert data.summary.startswith(f"stand-in for {name}: ")
    assert "says nothing about it" in data.summary
    assert (data.input_shape, data.num_groups) == (STAND_IN_SHAPES[name].inputs, STAND_IN_SHAPES[name].owners)
    assert data.outputs == STAND_IN_SHAPES[name].outputs


def test_stand_ins_are_a_function_of_their_settings():
    one, same, other = (StandIn(of="uci-har", seed=seed).load() for seed in (0, 0, 1))
    assert torch.equal(one.x_train, same.x_train)
    assert not torch.equal(one.x_train, other.x_train)


def test_every_data_set_of_a_quick_preset_has_a_stand_in():
    used = {name_of("data", presets.load(name, "quick").experiment.data) for name in presets.names() if "/" in name}
    assert used <= STAND_IN_SHAPES.keys() <= DATASETS.keys()
