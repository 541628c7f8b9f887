"""Compressed uploads: what is rounded, by how much at most, what is left for the next time, how many bytes travel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deploy import messages
from offbeat.core.errors import ConfigError, DataError
from offbeat.deploy.compression import BLOCK, EightBit, Half, TopK, Uncompressed, compress, parse_compression


def unpacked(how: str, delta: Tensor) -> Tensor:
    chosen = parse_compression(how)
    return chosen.unpack(chosen.pack(delta), len(delta), delta.dtype)


def test_choices_by_name() -> None:
    chosen = [parse_compression(text) for text in ("none", "half", "8bit", "topk:0.01")]
    assert chosen == [Uncompressed(), Half(), EightBit(), TopK(0.01)]
    assert [str(one) for one in chosen] == ["none", "half", "8bit", "topk:0.01"]
    assert parse_compression(str(TopK(0.1 + 0.2))) == TopK(0.1 + 0.2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("haf", "did you mean 'half'"),
        ("half:2", "unknown compression 'half:2'"),
        ("topk", "write topk:0.01"),
        ("topk:much", "write topk:0.01"),
        ("topk:0", "lies in"),
        ("topk:1.5", "lies in"),
        ("topk:nan", "lies in"),
    ],
)
def test_a_choice_that_cannot_be_meant(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_compression(text)


def test_top_k_sends_the_largest_and_owes_the_rest() -> None:
    """Half of four entries. First p = delta = (3, -1, 0.5, -4): 3 and -4 travel, e = (0, -1, 0.5, 0).
    Then delta = (0.5, -1, 2, 0.25): p = (0.5, -2, 2.5, 0.25), of which -2 and 2.5 travel, e = (0.5, 0, 0, 0.25).
    Nothing is lost: what travelled and what is owed add up to both deltas, (3.5, -2, 2.5, -3.75)."""
    how = TopK(0.5)
    first, owed = compress(how, torch.tensor([3.0, -1.0, 0.5, -4.0]))
    assert first["places"].tolist() == [0, 3]
    assert first["values"].tolist() == [3.0, -4.0]
    assert owed is not None
    assert owed.tolist() == [0.0, -1.0, 0.5, 0.0]
    second, owed = compress(how, torch.tensor([0.5, -1.0, 2.0, 0.25]), owed)
    assert second["places"].tolist() == [1, 2]
    assert second["values"].tolist() == [-2.0, 2.5]
    assert owed is not None
    assert owed.tolist() == [0.5, 0.0, 0.0, 0.25]
    total = how.unpack(first, 4, torch.float32) + how.unpack(second, 4, torch.float32) + owed
    assert total.tolist() == [3.5, -2.0, 2.5, -3.75]


def test_top_k_rounds_its_count_up_and_sends_something_always() -> None:
    assert len(TopK(0.001).pack(torch.ones(10))["values"]) == 1
    assert len(TopK(0.25).pack(torch.ones(10))["values"]) == 3
    assert torch.equal(unpacked("topk:1", torch.arange(5.0)), torch.arange(5.0))
    assert len(TopK(0.5).pack(torch.zeros(0))["values"]) == 0


def test_the_others_owe_nothing() -> None:
    for how in (Uncompressed(), Half(), EightBit()):
        assert compress(how, torch.ones(3), torch.full((3,), 9.0))[1] is None


def test_eight_bits_are_steps_of_the_largest_over_127() -> None:
    """max = 2.54, so s = 0.02: 1 = 50 s exactly, 0.509 = 25.45 s becomes 25 s = 0.5, -2.54 = -127 s."""
    parts = EightBit().pack(torch.tensor([2.54, 1.0, 0.509, -2.54], dtype=torch.float64))
    assert parts["steps"].tolist() == [127, 50, 25, -127]
    assert parts["scales"].tolist() == pytest.approx([0.02])


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=600))
def test_eight_bits_are_off_by_half_a_step_at_most(values: list[float]) -> None:
    delta = torch.tensor(values, dtype=torch.float64)
    error = (unpacked("8bit", delta) - delta).abs()
    for at in range(0, len(delta), BLOCK):
        step = float(delta[at : at + BLOCK].abs().max()) / 127
        # the scale is a float32: 127 steps of it are off by 127 / 2^24 of a step, and of a tiny one by more
        assert float(error[at : at + BLOCK].max()) <= step / 2 + 127 * step * 2**-23 + 127 * 2**-149


def test_zero_stays_zero() -> None:
    for how in ("half", "8bit", "topk:0.5"):
        assert unpacked(how, torch.zeros(300)).tolist() == [0.0] * 300


def test_half_precision_keeps_eleven_bits() -> None:
    """1 + 2^-10 is a float16; of 1 + 2^-12 only 1 is left."""
    given_, kept = torch.tensor([1 + 2**-10, 1 + 2**-12, -0.5]), torch.tensor([1 + 2**-10, 1.0, -0.5])
    assert torch.equal(unpacked("half", given_), kept)
    with pytest.raises(DataError, match=messages.TOO_LARGE_FOR_HALF):
        Half().pack(torch.tensor([70000.0]))


@pytest.mark.parametrize("how", ["none", "half", "8bit", "topk:1"])
def test_what_is_not_finite_stays_so(how: str) -> None:
    """The admission gate is to see it."""
    for value in (float("nan"), float("inf")):
        assert not bool(unpacked(how, torch.tensor([1.0, value, 2.0])).isfinite().all())


def test_bytes_that_travel() -> None:
    """Of 10240 floats, 40960 bytes: half of them; one byte each and 40 scales of 4; a hundredth, 103 of 4 + 4 bytes."""
    delta = torch.linspace(-1, 1, 10240)
    sizes = {
        how: sum(part.nbytes for part in parse_compression(how).pack(delta).values())
        for how in ("none", "half", "8bit")
    }
    assert sizes == {"none": 40960, "half": 20480, "8bit": 10240 + 160}
    assert sum(part.nbytes for part in TopK(0.01).pack(delta).values()) == 103 * 8
