"""Messages between a run and its forks: tensors of any kind keep their bits and are sent once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from offbeat.workers.shared_memory_codec import SharedMemory, Unsendable, pack, unpack

MEMORY = SharedMemory(1 << 16)
KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64")


def send(value: Any, memory: SharedMemory = MEMORY, **options: Any) -> Any:
    message = pack(value, memory)
    return unpack(message.body, message.tensors, memory, **options)


@pytest.mark.parametrize("dtype", [getattr(torch, kind) for kind in KINDS], ids=KINDS)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (), (0, 4)], ids=str)
@pytest.mark.parametrize("size", [1 << 16, 0], ids=["shared", "separate"])
def test_a_tensor_keeps_its_dtype_shape_and_bits(dtype: torch.dtype, shape: tuple[int, ...], size: int):
    count = torch.Size(shape).numel()
    sent = torch.arange(1, count + 1).to(dtype).view(shape)
    received = send({"tensor": sent}, SharedMemory(size))["tensor"]
    assert (received.dtype, received.shape) == (dtype, sent.shape)
    as_bytes = [t.contiguous().view(-1).view(torch.uint8).tolist() if count else [] for t in (sent, received)]
    assert as_bytes[0] == as_bytes[1]


def test_a_tensor_that_occurs_twice_is_sent_once():
    base = torch.arange(64.0)
    first, second, other = send((base, base, [base + 1]), SharedMemory(base.nbytes))
    assert first is second
    assert torch.equal(first, base)
    assert torch.equal(other[0], base + 1)


def test_copied_tensors_survive_the_next_message():
    copied, view = send(torch.ones(3)), send(torch.ones(3), copy=False)
    pack(torch.zeros(3), MEMORY)
    assert copied.tolist() == [1, 1, 1]
    assert view.tolist() == [0, 0, 0]


def test_inherited_objects_are_not_sent():
    class Rule:
        """A local class, which cannot be pickled."""

    rule = Rule()
    message = pack((1, rule, [rule]), MEMORY, {id(rule): 0})
    _, first, (second,) = unpack(message.body, message.tensors, MEMORY, inherited=[rule])
    assert first is rule
    assert second is rule
    with pytest.raises(Unsendable, match="Rule"):
        pack(rule, MEMORY)


class Subclass(Tensor):
    pass


@pytest.mark.parametrize(
    ("tensor", "exact"),
    [
        (torch.zeros(2, 3).t(), True),
        (torch.zeros(3, requires_grad=True), True),
        (torch.zeros(3, device="meta"), False),
        (torch.eye(2).to_sparse(), False),
        (torch.zeros(3).as_subclass(Subclass), False),
    ],
    ids=["transposed", "requires grad", "meta", "sparse", "subclass"],
)
def test_tensors_that_would_change_cannot_be_sent(tensor: Tensor, exact: bool):
    with pytest.raises(Unsendable):
        pack({"extra": tensor}, MEMORY, exact=exact)
