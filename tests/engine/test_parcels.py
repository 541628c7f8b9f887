"""What travels to forks and back: tensors of any kind, bit for bit, each once; what the other side has, not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from offbeat.workers.shared_memory_codec import Arena, Unsendable, pack, unpack

ROOM = Arena(1 << 16)


def through(value: Any, arena: Arena = ROOM, **options: Any) -> Any:
    parcel = pack(value, arena)
    return unpack(parcel.body, parcel.apart, arena, **options)


KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64")


@pytest.mark.parametrize("dtype", [getattr(torch, kind) for kind in KINDS], ids=KINDS)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (), (0, 4)], ids=str)
@pytest.mark.parametrize("room", [1 << 16, 0], ids=["shared", "apart"])
def test_a_tensor_keeps_its_kind_its_shape_and_its_bits(dtype: torch.dtype, shape: tuple[int, ...], room: int):
    count = torch.Size(shape).numel()
    sent = torch.arange(1, count + 1).to(dtype).view(shape)
    found = through({"held": sent}, Arena(room))["held"]
    assert (found.dtype, found.shape) == (dtype, sent.shape)
    as_bytes = [t.contiguous().view(-1).view(torch.uint8).tolist() if count else [] for t in (sent, found)]
    assert as_bytes[0] == as_bytes[1]


def test_the_same_tensor_twice_is_one_there_too_and_takes_its_place_once():
    base = torch.arange(64.0)
    arena = Arena(base.nbytes)
    one, two, other = through((base, base, [base + 1]), arena)
    assert one is two
    assert torch.equal(one, base)
    assert torch.equal(other[0], base + 1)


def test_what_is_copied_stays_when_the_next_parcel_comes():
    kept, seen = through(torch.ones(3)), through(torch.ones(3), copy=False)
    pack(torch.zeros(3), ROOM)
    assert kept.tolist() == [1, 1, 1]
    assert seen.tolist() == [0, 0, 0]  # it lies where the next one was put


def test_what_the_other_side_has_too_does_not_travel():
    class Rule:
        """Of a function: no pickle has it."""

    rule = Rule()
    parcel = pack((1, rule, [rule]), ROOM, {id(rule): 0})
    _, found, (again,) = unpack(parcel.body, parcel.apart, ROOM, known=[rule])
    assert found is rule
    assert again is rule
    with pytest.raises(Unsendable, match="Rule"):
        pack(rule, ROOM)


class Odd(Tensor):
    pass


@pytest.mark.parametrize(
    ("tensor", "exact"),
    [
        (torch.zeros(2, 3).t(), True),
        (torch.zeros(3, requires_grad=True), True),
        (torch.zeros(3, device="meta"), False),
        (torch.eye(2).to_sparse(), False),
        (torch.zeros(3).as_subclass(Odd), False),
    ],
    ids=["lies across", "has a gradient", "has no memory", "sparse", "answers for itself"],
)
def test_what_would_not_be_the_same_there_stays_here(tensor: Tensor, exact: bool):
    with pytest.raises(Unsendable):
        pack({"extra": tensor}, ROOM, exact=exact)
