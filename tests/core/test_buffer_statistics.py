"""Buffers and counters, merged in one way by every method."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.core.parts.buffer_statistics import Contributions, mix
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.testing import layout_of

LAYOUT = layout_of([("w", (1,), "param"), ("mean", (1,), "buffer"), ("seen", (), "counter")])
PLAIN = layout_of([("w", (3,), "param")])


def vector(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def test_buffers_are_mixed_and_counters_take_the_larger() -> None:
    new = vector(7, 0, 0)
    mix(LAYOUT, new, server=vector(1, 2, 5), local=vector(9, 4, 3), omega=0.25)
    # buffer 0.75 * 2 + 0.25 * 4 = 2.5; counter max(5, 3) = 5; the param is the method's business
    assert new.tolist() == [7, 2.5, 5]


@pytest.mark.parametrize(("omega", "mean"), [(-1.0, 2.0), (0.0, 2.0), (1.0, 4.0), (3.0, 4.0)])
def test_a_mixing_weight_outside_zero_and_one_is_clipped(omega: float, mean: float) -> None:
    new = vector(0, 0, 0)
    mix(LAYOUT, new, server=vector(0, 2, 0), local=vector(0, 4, 0), omega=omega)
    assert new[1] == mean


def test_a_layout_without_statistics_is_left_alone() -> None:
    new = vector(1, 2, 3)
    mix(PLAIN, new, vector(0, 0, 0), vector(9, 9, 9), 0.5)
    gathered = Contributions()
    gathered.add(PLAIN, vector(9, 9, 9), 1.0)
    gathered.write(PLAIN, new, vector(0, 0, 0))
    assert new.tolist() == [1, 2, 3]
    assert gathered.mean is None


def test_contributions_are_a_weighted_mean() -> None:
    gathered = Contributions()
    for mean, seen, weight in ((0.0, 4, 1.0), (4.0, 9, 3.0), (10.0, 2, 4.0)):
        gathered.add(LAYOUT, vector(0, mean, seen), weight)
    new = vector(0, 0, 0)
    gathered.write(LAYOUT, new, server=vector(0, 100, 7))
    # (1 * 0 + 3 * 4 + 4 * 10) / 8 = 6.5; max(7, 4, 9, 2) = 9
    assert new.tolist() == [0, 6.5, 9]


def test_written_with_half_weight_the_server_keeps_the_other_half() -> None:
    gathered = Contributions()
    gathered.add(LAYOUT, vector(0, 6, 1), 2.0)
    new = vector(0, 0, 0)
    gathered.write(LAYOUT, new, server=vector(0, 2, 3), omega=0.5)
    assert new.tolist() == [0, 4, 3]


def test_without_a_contribution_the_servers_own_stay() -> None:
    gathered = Contributions()
    gathered.add(LAYOUT, vector(0, 6, 9), 0.0)  # a contributor without weight is none
    new = vector(0, 0, 0)
    gathered.write(LAYOUT, new, server=vector(0, 2, 3))
    assert new.tolist() == [0, 2, 3]


def test_a_client_vector_is_not_changed_by_those_added_after_it() -> None:
    first = vector(0, 1, 1)
    gathered = Contributions()
    gathered.add(LAYOUT, first, 1.0)
    gathered.add(LAYOUT, vector(0, 5, 5), 1.0)
    assert first.tolist() == [0, 1, 1]


def test_a_buffer_sums_weighted_deltas_and_gathers_statistics_of_the_locals() -> None:
    buffer = WeightedSum()
    buffer.add_delta(LAYOUT, base=vector(1, 0, 0), local=vector(3, 2, 1), weight=1.0)
    buffer.add_delta(LAYOUT, base=vector(2, 0, 0), local=vector(8, 5, 4), weight=0.5)
    assert buffer.total is not None
    assert buffer.total[0] == 5  # 1 * (3 - 1) + 0.5 * (8 - 2)
    assert (buffer.weight, buffer.count) == (1.5, 2)
    new = vector(0, 0, 0)
    buffer.statistics.write(LAYOUT, new, vector(0, 0, 0))
    assert new.tolist() == pytest.approx([0, 3, 4])  # (1 * 2 + 0.5 * 5) / 1.5


floats = st.floats(min_value=-(2.0**100), max_value=2.0**100, width=32)
dtypes = st.sampled_from([torch.float32, torch.float64])


@given(server=floats, local=floats, omega=st.floats(0, 1), dtype=dtypes)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_mixed_buffer_stays_between_its_end_points(
    server: float, local: float, omega: float, dtype: torch.dtype
) -> None:
    new = vector(0, 0, 0, dtype=dtype)
    mix(LAYOUT, new, vector(0, server, 0, dtype=dtype), vector(0, local, 0, dtype=dtype), omega)
    assert min(server, local) <= new[1].item() <= max(server, local)


@given(
    contributors=st.lists(st.tuples(floats, st.floats(1e-6, 1e6), st.integers(0, 2**24)), min_size=1, max_size=8),
    omega=st.floats(0, 1),
    dtype=dtypes,
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_weighted_mean_stays_in_the_hull_of_its_contributors(
    contributors: list[tuple[float, float, int]], omega: float, dtype: torch.dtype
) -> None:
    gathered = Contributions()
    for mean, weight, seen in contributors:
        gathered.add(LAYOUT, vector(0, mean, seen, dtype=dtype), weight)
    server = 0.5
    new = vector(0, 0, 0, dtype=dtype)
    gathered.write(LAYOUT, new, vector(0, server, 3, dtype=dtype), omega)
    means = [mean for mean, _, _ in contributors]
    assert gathered.mean is not None
    assert min(means) <= gathered.mean[1].item() <= max(means)
    assert min([*means, server]) <= new[1].item() <= max([*means, server])
    assert new[2].item() == max(3, *(seen for _, _, seen in contributors), 3)
