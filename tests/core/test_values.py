"""Values are frozen dataclasses with slots, however they are made."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace

import pytest
import torch

from offbeat.core import protocol
from offbeat.core.values import value


@value
class Fact:
    now: float
    client: int
    extras: Mapping[str, int] = field(default_factory=dict)
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class Plain:
    now: float
    client: int
    extras: Mapping[str, int] = field(default_factory=dict)
    ticket: int | None = None


@pytest.mark.parametrize("make", [
    lambda kind: kind(1.0, 2), lambda kind: kind(1.0, client=2, ticket=5), lambda kind: kind(1.0, 2, {"a": 1}, 3),
])  # fmt: skip
def test_a_value_is_made_and_shown_like_a_dataclass(make):
    fact, plain = make(Fact), make(Plain)
    assert [getattr(fact, f.name) for f in fields(fact)] == [getattr(plain, f.name) for f in fields(plain)]
    assert repr(fact) == repr(plain).replace("Plain", "Fact")
    assert is_dataclass(fact)
    assert not hasattr(fact, "__dict__")


def test_its_signature_is_that_of_the_dataclass():
    assert str(inspect.signature(Fact)) == str(inspect.signature(Plain))


@pytest.mark.parametrize("wrong", [
    lambda kind: kind(1.0), lambda kind: kind(1.0, 2, {}, 3, 4), lambda kind: kind(1.0, 2, other=3),
])  # fmt: skip
def test_wrong_arguments_are_refused_with_the_same_words(wrong):
    with pytest.raises(TypeError) as of_fact:
        wrong(Fact)
    with pytest.raises(TypeError) as of_plain:
        wrong(Plain)
    assert str(of_fact.value) == str(of_plain.value).replace("Plain", "Fact")


def test_nothing_changes_it():
    fact = Fact(1.0, 2)
    for change in (lambda: setattr(fact, "now", 2.0), lambda: delattr(fact, "now")):
        with pytest.raises(FrozenInstanceError):
            change()


def test_a_factory_is_asked_for_each():
    one, other = Fact(1.0, 2), Fact(1.0, 2)
    assert one.extras == other.extras == {}
    assert one.extras is not other.extras


def test_it_is_compared_hashed_copied_replaced_and_matched():
    fact = Fact(1.0, 2, ticket=3)
    assert fact == Fact(1.0, 2, {}, 3)
    assert fact not in (Fact(1.0, 2), Plain(1.0, 2, {}, 3))
    assert replace(fact, client=7) == Fact(1.0, 7, ticket=3)
    assert pickle.loads(pickle.dumps(fact)) == copy.copy(fact) == copy.deepcopy(fact) == fact
    assert hash(protocol.ClientReady(1.0, 2, 3)) == hash(protocol.ClientReady(1.0, 2, num_examples=3))
    match fact:
        case Fact(client=client):
            assert client == 2


def test_events_and_actions_are_frozen_and_have_slots():
    for kind in (*protocol.Event.__args__, *protocol.Action.__args__):
        assert kind.__dataclass_params__.frozen, kind
        assert "__slots__" in vars(kind), kind


def test_it_may_be_inherited_from():
    class Own(protocol.Dispatch):
        pass

    assert isinstance(Own(3, torch.zeros(1)), protocol.Dispatch)
    assert type(Own(3, torch.zeros(1))) is Own
