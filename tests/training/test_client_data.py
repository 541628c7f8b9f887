"""What clients hold, and what is refused before it does harm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.training.client_data import ClientData

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def rows(*parts: list[int]) -> list[Tensor]:
    return [torch.tensor(p, dtype=torch.int64) for p in parts]


def test_shared_rows_are_taken_in_the_clients_own_order() -> None:
    data = ClientData.shared(X, Y, rows([5, 0], [1, 2, 3]))
    x, y = data.take(0, torch.tensor([0, 1]))
    assert torch.equal(x, X[[5, 0]])
    assert torch.equal(y, Y[[5, 0]])
    x, _ = data.take(1, torch.tensor([2]))
    assert torch.equal(x, X[[3]])


def test_own_pairs_and_shared_rows_give_the_same_examples() -> None:
    parts = rows([4, 1], [0, 2, 5])
    shared = ClientData.shared(X, Y, parts)
    own = ClientData.separate([(X[p], Y[p]) for p in parts])
    assert shared.num_examples == own.num_examples == {0: 2, 1: 3}
    for client, positions in ((0, [1, 0]), (1, [2, 2, 0])):
        for a, b in zip(
            shared.take(client, torch.tensor(positions)), own.take(client, torch.tensor(positions)), strict=True
        ):
            assert torch.equal(a, b)


def test_pooled_data_is_everything_client_after_client() -> None:
    parts = rows([4, 1], [0, 2])
    for data in (ClientData.shared(X, Y, parts), ClientData.separate([(X[p], Y[p]) for p in parts])):
        x, y = data.all_examples()
        assert torch.equal(x, X[[4, 1, 0, 2]])
        assert torch.equal(y, Y[[4, 1, 0, 2]])


def test_shared_tensors_are_stored_once() -> None:
    data = ClientData.shared(X, Y, [torch.arange(6)] * 1000)
    assert len(data) == 1000
    assert data._pair[0] is X


def test_clients_may_have_names_of_their_own() -> None:
    data = ClientData.shared(X, Y, {17: torch.tensor([3]), 4: torch.tensor([0, 1])})
    assert data.num_examples == {17: 1, 4: 2}
    assert torch.equal(data.take(17, torch.tensor([0]))[0], X[[3]])
    with pytest.raises(DataError, match="no data for client 5: there are 2 clients, 17, 4"):
        data.size(5)


def test_class_labels_become_what_cross_entropy_takes() -> None:
    assert ClientData.separate([(X, Y.to(torch.uint8))]).label_dtype == torch.int64


NAN = X.clone()
NAN[4, 1] = float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClientData.shared(X, Y, []), "no clients"),
        (lambda: ClientData.separate({}), "no clients"),
        (lambda: ClientData.shared(X, Y, rows([0], [], [1])), "client 1 has no examples"),
        (lambda: ClientData.shared(X, Y, rows([], [0], [], [])), r"3 clients have \(0, 2, 3\) no examples"),
        (lambda: ClientData.separate([(X, Y), (X[:0], Y[:0])]), "client 1 has no examples"),
        (lambda: ClientData.shared(X, Y[:5], rows([0])), "6 inputs but 5 labels"),
        (lambda: ClientData.separate([(X, Y), (X, Y[:5])]), "client 1: 6 inputs but 5 labels"),
        (lambda: ClientData.shared(X, Y, rows([0], [6])), r"client 1 names rows outside 0\.\.5"),
        (lambda: ClientData.shared(X, Y, rows([-1])), r"client 0 names rows outside 0\.\.5"),
        (lambda: ClientData.shared(X, Y - 1, rows([0])), "label -1 in example 0: class labels must be 0 or more"),
        (
            lambda: ClientData.separate([(X, Y)], num_classes=2),
            r"client 0: label 2 in example 2: class labels must be in 0\.\.1",
        ),
        (lambda: ClientData.shared(NAN, Y, rows([0])), "1 of 6 inputs are not finite, the first in example 4"),
        (lambda: ClientData.separate([(X, Y), (NAN, Y)]), "client 1: 1 of 6 inputs are not finite"),
        (lambda: ClientData.separate([(X, X[:, 0] / 0)]), "client 0: 6 of 6 labels are not finite"),
        (
            lambda: ClientData.separate([(X, Y), (X[:, :1], Y)]),
            r"client 1 has inputs \(1,\) .*, client 0 has inputs \(2,\)",
        ),
        (
            lambda: ClientData.separate([(X, Y), (X, Y.float())]),
            "client 1 has .*torch.float32, client 0 has .*torch.int64",
        ),
    ],
)
def test_data_that_cannot_be_used_is_refused_with_the_reason(make: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()  # type: ignore[operator]
