"""A state as plain data plus tensors, and back."""

import json
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from core import messages
from offbeat.core.errors import CheckpointError
from offbeat.core.parts.selection import IdleClients, Seats
from offbeat.core.snapshot import TensorTable, matches_repr, pack, pack_state, unpack, unpack_state
from offbeat.core.vector import Layout
from offbeat.testing import CopyingStore, tiny_layout


@dataclass
class Inner:
    tensor: Tensor
    label: str = "inner"


@dataclass
class State:
    model: Tensor
    version: int = 0
    layout: Layout = field(default_factory=tiny_layout)
    inner: Inner | None = None
    clients: Any = None
    store: Any = None
    probe: Callable[[Tensor], Tensor] | None = None


def through_text(value: Any) -> Any:
    table = TensorTable()
    return unpack(json.loads(json.dumps(pack(value, table.put))), table.get)


def through_checkpoint(state: State, fresh: State) -> State:
    table = TensorTable()
    text = json.dumps(pack_state(state, table.put))
    return unpack_state(fresh, json.loads(text), table.get)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1, 1e-300, "text", [], [1, [2]], (1, (2, "x")), {}, {1: {"a": None}, (2, 3): 4},
        deque([1, 2], maxlen=3), deque(), array("q", [1, -5]), array("d", [0.1]), array("q"),
    ],
)  # fmt: skip
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    again = through_text(value)
    assert again == value
    assert type(again) is type(value)


def test_a_deque_keeps_its_length_limit_and_a_mapping_its_order() -> None:
    assert through_text(deque([1], maxlen=7)).maxlen == 7
    assert list(through_text({5: 0, 1: 0, 3: 0})) == [5, 1, 3]


def test_infinite_and_missing_numbers_survive() -> None:
    infinite, missing = through_text([float("inf"), float("nan")])
    assert infinite == float("inf")
    assert missing != missing


def test_a_tensor_that_is_shared_is_stored_once_and_stays_shared() -> None:
    model, other = torch.ones(2), torch.ones(2)
    table = TensorTable()
    tree = pack({"a": model, "b": [model], "c": other}, table.put)
    assert len(table.tensors) == 2  # equal is not the same
    again = unpack(tree, table.get)
    assert again["a"] is again["b"][0]
    assert again["c"] is not again["a"]


def test_dataclasses_are_rebuilt_through_their_constructor() -> None:
    seats = Seats(idle=IdleClients(array("q", [4, 2])), at_work=1, deferred={3: True})
    again = through_text(seats)
    assert again == seats
    assert again.idle.positions == {4: 0, 2: 1}  # derived, so not in the file


def test_derived_fields_are_not_in_the_file() -> None:
    tree = pack(IdleClients(array("q", [4, 2])), TensorTable().put)
    assert list(tree["fields"]) == ["members"]


@pytest.mark.parametrize("value", [{1, 2}, frozenset([1]), [{"a": {3}}]])
def test_a_set_is_refused_because_its_order_would_be_lost(value: Any) -> None:
    with pytest.raises(CheckpointError, match=messages.NO_SET):
        pack(value, TensorTable().put)


def test_a_class_defined_inside_a_function_is_refused() -> None:
    @dataclass
    class Local:
        x: int = 0

    with pytest.raises(CheckpointError, match=messages.LOCAL_CLASS):
        pack(Local(), TensorTable().put)


@pytest.mark.parametrize("value", [object(), 1j, b"bytes", Inner])
def test_values_that_are_not_data_are_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=messages.NOT_SAVED):
        pack(value, TensorTable().put)


@pytest.mark.parametrize(
    "name", ["nowhere.at.all:Thing", "builtins:eval", "os:system", "offbeat.core.snapshot:Missing", "no colon"]
)
def test_a_file_that_names_anything_but_a_known_dataclass_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=messages.UNKNOWN_CLASS):
        unpack({"$class": name, "fields": {}}, TensorTable().get)


def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(CheckpointError, match=messages.UNREADABLE):
        unpack({"$pickle": "gASV"}, TensorTable().get)


def test_layout_functions_and_known_clients_come_from_init() -> None:
    saved = State(torch.ones(2), 3, probe=torch.abs, clients=MappingProxyType({0: 1}), inner=Inner(torch.zeros(1)))
    fresh = State(torch.zeros(2), 0, probe=torch.neg, clients=MappingProxyType({0: 5}))
    again = through_checkpoint(saved, fresh)
    assert (again.version, again.model.tolist()) == (3, [1, 1])
    assert again.inner == Inner(torch.zeros(1))
    assert again.probe is torch.neg
    assert again.clients == {0: 5}
    assert again.layout is fresh.layout


def test_a_store_of_the_engine_is_kept_and_takes_the_contents() -> None:
    store = CopyingStore()
    store[4] = torch.tensor([4.0])
    mine = CopyingStore()
    mine[9] = torch.tensor([9.0])  # left over: must go
    again = through_checkpoint(State(torch.ones(1), store=store), State(torch.ones(1), store=mine))
    assert again.store is mine
    assert {client: tensor.tolist() for client, tensor in mine.items()} == {4: [4.0]}


def test_two_fields_that_share_a_tensor_share_it_again() -> None:
    model = torch.ones(2)
    again = through_checkpoint(State(model, inner=Inner(model)), State(torch.zeros(2)))
    assert again.inner is not None
    assert again.model is again.inner.tensor


def test_a_tensor_with_gradients_is_saved_without_them() -> None:
    assert not through_text(torch.ones(1, requires_grad=True)).requires_grad


MANY = 2000


@pytest.mark.parametrize(
    "value",
    [
        list(range(MANY)),
        deque(range(MANY), maxlen=3 * MANY),
        {client: client % 7 for client in range(MANY, 0, -1)},
        dict.fromkeys(range(MANY, 0, -1)),
        {i: -(2**62) + i for i in range(MANY)},
    ],
    ids=["list", "deque", "dict", "ordered set", "large"],
)
def test_many_whole_numbers_are_a_tensor_and_come_back_in_order(value):
    table = TensorTable()
    tree = pack(value, table.put)
    assert len(json.dumps(tree)) < 100
    back = unpack(json.loads(json.dumps(tree)), table.get)
    assert back == value
    assert type(back) is type(value)
    assert list(back) == list(value)
    assert getattr(back, "maxlen", None) == getattr(value, "maxlen", None)


@pytest.mark.parametrize(
    "value",
    [
        [*range(MANY), 0.5],
        [True] * MANY,
        [2**63] * MANY,
        {i: (None if i else 3) for i in range(MANY)},
        {i: torch.zeros(1) if i == 5 else i for i in range(MANY)},
        {str(i): i for i in range(MANY)},
    ],
    ids=["a float", "truths", "too large", "not all None", "a tensor", "words"],
)
def test_many_of_anything_else_come_back_as_they_were(value):
    back = through_text(value)
    assert list(back) == list(value)
    assert repr(back) == repr(value)


def test_a_value_is_known_by_its_text_also_from_before_it_had_all_its_fields():
    @dataclass(frozen=True)
    class Grown:
        old: int = 1
        new: str = "as before"

    name = Grown.__qualname__
    assert matches_repr(Grown(old=2), f"{name}(old=2, new='as before')")
    assert matches_repr(Grown(old=2), f"{name}(old=2)")
    assert not matches_repr(Grown(old=2), f"{name}(old=1)")
    assert not matches_repr(Grown(old=2, new="other"), f"{name}(old=2)")  # it was not so then
    assert matches_repr(3, "3")


def test_a_field_that_is_of_another_kind_now_is_noticed():
    @dataclass
    class Then:
        model: Tensor
        heard: int = 3

    @dataclass
    class Now:
        model: Tensor
        heard: dict[int, None] = field(default_factory=dict)
        rate: float | None = None

    table = TensorTable()
    tree = pack_state(Then(torch.zeros(1)), table.put)
    with pytest.raises(CheckpointError, match=messages.CHANGED_FIELD):
        unpack_state(Now(torch.zeros(1)), tree, table.get)
    tree = pack_state(Now(torch.zeros(1), {4: None}, 2), table.put)
    # numbers, and nothing, are whatever they came to be
    assert unpack_state(Now(torch.zeros(1)), tree, table.get).rate == 2
