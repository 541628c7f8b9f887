"""Layer-wise orthogonal projection: orthogonal in every layer, and nothing closer is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.strategies.orthofl import projection
from offbeat.core.strategies.orthofl.projection import add_orthogonal, orthonormal, remove_span_
from offbeat.core.vector import Layout
from offbeat.testing import layout_of

LAYOUT = layout_of(
    [
        ("a", (2, 2), "param"),
        ("mean", (2,), "buffer"),
        ("b", (3,), "param"),
        ("seen", (), "counter"),
        ("c", (1,), "param"),
    ]
)
# multiples of 1/8: zeros and equal vectors occur, and nothing is so small that its square is lost
entries = st.lists(st.integers(-64, 64).map(lambda n: n / 8), min_size=LAYOUT.size, max_size=LAYOUT.size)
vectors = entries.map(lambda values: torch.tensor(values, dtype=torch.float64))


def layers(vector: Tensor, layout: Layout = LAYOUT) -> list[Tensor]:
    return [vector[s.start : s.stop] for s in layout.of_kind("param")]


def perpendicular(D: Tensor, d: Tensor, layout: Layout = LAYOUT) -> Tensor:
    """D_perp, as what is added to Y = 0 whose client came from C = -d."""
    nothing = torch.zeros_like(D)
    return add_orthogonal(layout, nothing, -d, D, nothing)[0]


@settings(max_examples=200, deadline=None)
@given(D=vectors, d=vectors)
def test_what_is_left_is_orthogonal_to_d_in_every_layer(D: Tensor, d: Tensor) -> None:
    for left, d_l in zip(layers(perpendicular(D, d)), layers(d), strict=True):
        assert abs(float(torch.dot(left, d_l))) <= 1e-10


@settings(max_examples=200, deadline=None)
@given(D=vectors, d=vectors, other=vectors)
def test_no_vector_orthogonal_to_d_is_closer_to_D(D: Tensor, d: Tensor, other: Tensor) -> None:
    left, rival = perpendicular(D, d), perpendicular(other, d)  # any vector orthogonal to d is somebody's projection
    for D_l, left_l, rival_l in zip(layers(D), layers(left), layers(rival), strict=True):
        assert torch.linalg.vector_norm(D_l - left_l) <= torch.linalg.vector_norm(D_l - rival_l) + 1e-12


@settings(max_examples=100, deadline=None)
@given(D=vectors, d=vectors)
def test_projecting_twice_changes_nothing_and_d_is_left_alone(D: Tensor, d: Tensor) -> None:
    before, once = d.clone(), perpendicular(D, d)
    torch.testing.assert_close(perpendicular(once, d), once, rtol=0, atol=1e-12)
    assert torch.equal(d, before)


@settings(max_examples=100, deadline=None)
@given(D=vectors, d=vectors)
def test_statistics_are_those_of_the_client(D: Tensor, d: Tensor) -> None:
    new, _ = add_orthogonal(LAYOUT, d, D, D, d)
    for a, b in (*LAYOUT.buffers, *LAYOUT.counters):
        assert torch.equal(new[a:b], d[a:b])


@settings(max_examples=100, deadline=None)
@given(Y=vectors, C=vectors, now=vectors, then=vectors)
def test_the_reported_overlap_matches_the_projection(Y: Tensor, C: Tensor, now: Tensor, then: Tensor) -> None:
    given = [v.clone() for v in (Y, C, now, then)]
    new, (share, removed) = add_orthogonal(LAYOUT, Y, C, now, then)
    assert all(map(torch.equal, given, (Y, C, now, then)))
    D, d = now - then, Y - C
    left = perpendicular(D, d)
    torch.testing.assert_close(torch.cat(layers(new)), torch.cat(layers(Y + left)), rtol=0, atol=1e-12)
    assert removed == pytest.approx(float(torch.linalg.vector_norm(torch.cat(layers(D - left)))), abs=1e-9)
    D_all, d_all = torch.cat(layers(D)), torch.cat(layers(d))
    total = float(torch.dot(d_all, d_all))
    assert share * total == pytest.approx(float(torch.dot(D_all, d_all)) if total else 0.0, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(d=vectors, others=st.lists(vectors, max_size=4))
def test_what_is_left_of_d_is_orthogonal_to_all_others_in_every_layer(d: Tensor, others: list[Tensor]) -> None:
    left = d.clone()
    remove_span_(LAYOUT, left, others)
    for u in others:
        for left_l, u_l in zip(layers(left), layers(u), strict=True):
            assert abs(float(torch.dot(left_l, u_l))) <= 1e-8


def test_a_projection_by_hand() -> None:
    layout = layout_of([("x", (2,), "param"), ("y", (1,), "param")])
    Y, C = torch.tensor([3.0, 2.0, 4.0]), torch.tensor([2.0, 1.0, 6.0])  # d = (1, 1), (-2)
    now, then = torch.tensor([4.0, 3.0, 5.0]), torch.tensor([1.0, 2.0, 0.0])  # D = (3, 1), (5)
    new, (share, removed) = add_orthogonal(layout, Y, C, now, then)
    assert new.tolist() == [4, 1, 4]  # (3, 1) - 4/2 (1, 1) = (1, -1) is added; 5 - (-10/4)(-2) = 0
    assert share == -1.0  # (4 - 10) / (2 + 4)
    assert removed == pytest.approx(33**0.5)  # (2, 2) and 5


@pytest.mark.parametrize(("dtype", "left"), [(torch.float32, [1.0, 1.0]), (torch.float64, [0.0, 0.0])])
def test_a_d_of_almost_no_length_has_no_direction_except_in_float64(dtype: torch.dtype, left: list[float]) -> None:
    layout = layout_of([("x", (2,), "param")])
    d = torch.full((2,), 5e-7, dtype=dtype)  # squared: 2.5e-13 an element, under 1e-12
    assert perpendicular(torch.ones(2, dtype=dtype), d, layout).tolist() == pytest.approx(left, abs=1e-12)


def test_in_float64_only_an_exact_zero_has_no_direction() -> None:
    one = torch.ones(LAYOUT.size, dtype=torch.float64)
    new, overlap = add_orthogonal(LAYOUT, one, one, one, 0 * one)
    assert torch.cat(layers(new)).tolist() == [2] * LAYOUT.num_params
    assert overlap == (0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_computes_in_the_dtype_it_is_given(dtype: torch.dtype) -> None:
    layout = layout_of([("x", (2,), "param")])
    left = perpendicular(torch.tensor([3.0, 1.0], dtype=dtype), torch.tensor([1.0, 1.0], dtype=dtype), layout)
    assert (left.dtype, left.tolist()) == (dtype, [1, -1])


@pytest.mark.parametrize("block", [1, 4, 5, 7, 100])
def test_how_many_layers_are_worked_on_at_once_changes_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of(
        [
            ("a", (3,), "param"),
            ("b", (1,), "param"),
            ("mean", (2,), "buffer"),
            ("c", (6,), "param"),
            ("d", (2,), "param"),
        ]
    )
    made = torch.Generator().manual_seed(0)
    Y, C, now, then = (torch.randn(layout.size, dtype=torch.float64, generator=made) for _ in range(4))
    expected = Y.clone()
    for s in layout.of_kind("param"):
        D, d = (now - then)[s.start : s.stop], (Y - C)[s.start : s.stop]
        expected[s.start : s.stop] += D - (D @ d) / (d @ d) * d
    monkeypatch.setattr(projection, "BLOCK", block)
    torch.testing.assert_close(add_orthogonal(layout, Y, C, now, then)[0], expected, rtol=1e-14, atol=1e-14)


def test_an_orthonormal_basis_drops_vectors_in_the_span_of_earlier_ones() -> None:
    one, two = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 5.0, 0.0], dtype=torch.float64)
    basis = orthonormal([one, 2 * one, torch.zeros_like(one), two, one + two, one + 1e-7 * two])
    # (0, 5) - 4 (.6, .8) = (-2.4, 1.8), of length 3
    assert [[round(x, 12) for x in q.tolist()] for q in basis] == [[0.6, 0.8, 0.0], [-0.8, 0.6, 0.0]]


def test_a_vector_a_little_outside_the_span_counts() -> None:
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    basis = orthonormal([one, one + torch.tensor([0.0, 1e-5], dtype=torch.float64)])
    assert [q.tolist() for q in basis] == [[1, 0], pytest.approx([0, 1])]
