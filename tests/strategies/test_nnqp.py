"""The nearest vector that goes against none of the rows: worked by hand, and against a reference that tries every
face.
"""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import Tensor

from offbeat.core import vector
from offbeat.core.strategies.gradma import nnqp
from offbeat.core.strategies.gradma.nnqp import compute_gram, find_conflicts, solve, solve_three


def matrix(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def nearest(G: Tensor, rho: float = 0.0) -> Tensor:
    """x of rows G_1 .. G_n, v (v last), in one go for both solvers where there are three rows."""
    gram = G @ G.mT
    z = solve(gram, rho)
    assert z is not None
    assert (z >= 0).all()
    x = G[-1] + z @ G[:-1]
    if len(G) == 4:
        z = solve_three(gram, rho)
        assert (z >= 0).all()
        length = float(torch.linalg.vector_norm(G[-1]))
        torch.testing.assert_close(G[-1] + z @ G[:-1], x, rtol=0, atol=1e-6 * (length + 1e-300))
    return x


def test_a_vector_that_agrees_with_every_row_stays_as_it_is_to_the_last_bit() -> None:
    G = matrix((1.0, 0.0, 0.3), (0.0, 1.0, 0.0), (1.0, 1.0, -0.1), (0.1, 0.7, 0.9))
    assert torch.equal(nearest(G), G[-1])
    assert torch.equal(solve_three(G @ G.mT), torch.zeros(3, dtype=torch.float64))
    orthogonal = matrix((0.3, 0.1, 0.0), (0.0, 0.0, 0.7), (0.1, -0.3, 0.0))
    assert torch.equal(nearest(orthogonal), orthogonal[-1])


def test_against_one_row_the_component_along_it_is_lost() -> None:
    # v = (-1, 2): <v, (2, 0)> = -2, so z_1 = 2 / 4 = 1/2 and x = v + 1/2 (2, 0) = (0, 2); the others agree with x
    G = matrix((2, 0), (0, 1), (1, 1), (-1, 2))
    torch.testing.assert_close(nearest(G), matrix((0, 2))[0])
    torch.testing.assert_close(solve_three(G @ G.mT), matrix((0.5, 0, 0))[0])


def test_two_rows_may_both_be_active() -> None:
    # v = (-1, -1, 5) against (1, 0, 0) and (1, 1, 0). z_1 + z_2 = 1 and z_1 + 2 z_2 = 2: z = (0, 1), x = (0, 0, 5)
    torch.testing.assert_close(nearest(matrix((1, 0, 0), (1, 1, 0), (0, 0, 1), (-1, -1, 5))), matrix((0, 0, 5))[0])
    # v = (-2, -1, 5): z_1 + z_2 = 2 and z_1 + 2 z_2 = 3: z = (1, 1), x = v + (2, 1, 0) = (0, 0, 5)
    G = matrix((1, 0, 0), (1, 1, 0), (0, 0, 1), (-2, -1, 5))
    torch.testing.assert_close(nearest(G), matrix((0, 0, 5))[0])
    torch.testing.assert_close(solve_three(G @ G.mT), matrix((1, 1, 0))[0])


def test_all_three_may_be_active() -> None:
    # orthogonal rows of lengths 1, 2, 1/2: z_i = -<v, G_i> / ||G_i||^2 = 1, 4/4 = 1, 1.5/0.25 = 6
    G = matrix((1, 0, 0), (0, 2, 0), (0, 0, 0.5), (-1, -2, -3))
    torch.testing.assert_close(solve_three(G @ G.mT), matrix((1, 1, 6))[0])
    torch.testing.assert_close(nearest(G), matrix((0, 0, 0))[0], rtol=0, atol=1e-14)


def test_a_negative_multiplier_means_the_row_is_not_active() -> None:
    # both rows object to v = (-3, -1, 0): <v, (1, 0, 0)> = -3, <v, (1, 1, 0)> = -4. Both active: z_1 + z_2 = 3 and
    # z_1 + 2 z_2 = 4 give z = (2, 1). For v = (-1, -3, 0): z_1 + z_2 = 1, z_1 + 2 z_2 = 4 give z_1 = -2. So only the
    # second: z_2 = 4 / 2 = 2, x = (1, -1, 0), and the first agrees with it
    torch.testing.assert_close(nearest(matrix((1, 0, 0), (1, 1, 0), (0, 0, 1), (-1, -3, 0))), matrix((1, -1, 0))[0])


def test_the_first_local_step_has_two_equal_rows_and_none_of_drift_and_changes_nothing() -> None:
    g = matrix((0.3, -0.7, 0.1))[0]
    G = torch.stack([g, g, torch.zeros(3, dtype=torch.float64), g])
    assert torch.equal(nearest(G), g)


def test_opposite_rows_leave_what_is_orthogonal_to_both() -> None:
    # (1, 0) and (-1, 0) allow only x_1 = 0
    torch.testing.assert_close(nearest(matrix((1, 0), (-1, 0), (0, 0), (-3, 2))), matrix((0, 2))[0])
    torch.testing.assert_close(nearest(matrix((1, 0), (-1, 0), (3, 2))), matrix((0, 2))[0])


def test_rows_of_zeros_and_a_vector_of_zeros_ask_for_nothing() -> None:
    assert torch.equal(nearest(matrix((0, 0), (0, 0), (0, 0), (-3, 2))), matrix((-3, 2))[0])
    assert torch.equal(nearest(matrix((1, 0), (0, 1), (1, 1), (0, 0))), matrix((0, 0))[0])
    assert torch.equal(nearest(matrix((0, 0), (-3, 2)), rho=0.5), matrix((-3, 2))[0])


@pytest.mark.parametrize("long", [1e-30, 1e30])
def test_how_long_a_row_is_makes_no_difference(long: float) -> None:
    torch.testing.assert_close(nearest(matrix((2 * long, 0), (0, 1), (1, 1), (-1, 2))), matrix((0, 2))[0])


def test_a_margin_asks_for_a_cosine_of_at_least_rho() -> None:
    # v = (0, 1) is orthogonal to (4, 0). With rho = 1/2: <x, (4, 0)> >= 1/2 * 1 * 4 = 2, so x = (1/2, 1)
    G = matrix((4, 0), (0, 1), (0, 2), (0, 1))
    torch.testing.assert_close(nearest(G, rho=0.5), matrix((0.5, 1))[0])
    # z_1 ||G_1||^2 = 2
    torch.testing.assert_close(solve_three(G @ G.mT, rho=0.5), matrix((0.125, 0, 0))[0])


def test_a_margin_that_no_vector_keeps_is_a_failure_and_the_worker_keeps_its_gradient() -> None:
    G = matrix((1, 0), (-1, 0), (0, 1), (3, 2))
    assert solve(G @ G.mT, rho=0.1) is None
    assert solve_three(G @ G.mT, rho=0.1).tolist() == [0, 0, 0]


def test_a_solver_that_gives_up_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(*_: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(optimize, "nnls", gives_up)
    G = matrix((2, 0), (-1, 2))
    assert solve(G @ G.mT) is None


def test_squares_that_overflow_are_a_failure() -> None:
    # 2e40 is infinite in float32
    for G in (torch.tensor([[1.0, 0.0], [-1e20, 1e20]]), torch.tensor([[1e20, -1e20], [-1.0, 1.0]])):
        assert solve(G @ G.mT) is None


@pytest.mark.parametrize("short", [1e-7, 1e-12, 1e-15])
def test_in_float32_a_short_row_asks_for_as_much_as_a_long_one(short: float) -> None:
    # <v, (s, 0)> = -s, so z_1 = s / s^2 = 1 / s and x = v + (1, 0) = (0, 1)
    G = torch.tensor([[short, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 1.0]])
    for z in (solve_three(G @ G.mT), solve(G @ G.mT)):
        assert z is not None
        assert z.tolist() == pytest.approx([1 / short, 0, 0])


@pytest.mark.parametrize(("dtype", "none"), [(torch.float32, 1e-16), (torch.float64, 1e-147)])
def test_a_row_or_a_vector_whose_squared_length_is_lost_to_underflow_asks_for_nothing(
    dtype: torch.dtype, none: float
) -> None:
    # tiny / eps is 1e-31 in float32 and 1e-292 in float64: the squares 1e-32 and 1e-294 are below
    row = torch.tensor([[none, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 1.0]], dtype=dtype)
    vector = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-none, none]], dtype=dtype)
    for G in (row, vector):
        for z in (solve_three(G @ G.mT, rho=0.25), solve(G @ G.mT, rho=0.25)):
            assert z is not None
            assert z.tolist() == [0, 0, 0]


def reference(G: Tensor, rho: float = 0.0) -> np.ndarray:
    """x by trying every set of active rows with least squares: of all points that are feasible, the nearest to v."""
    rows, v = G[:-1].numpy(), G[-1].numpy()
    c = rho * np.linalg.norm(v) * np.linalg.norm(rows, axis=1)
    best, distance = None, np.inf
    for active in chain.from_iterable(combinations(range(len(rows)), k) for k in range(len(rows) + 1)):
        a = list(active)
        move = (
            np.linalg.lstsq(rows[a], c[a] - rows[a] @ v, rcond=None)[0] if a else np.zeros_like(v)
        )  # the shortest with <v + move, G_i> = c_i
        x = v + move
        lengths = np.linalg.norm(rows, axis=1) * max(np.linalg.norm(v), 1e-300)
        if (rows @ x - c >= -1e-9 * lengths).all() and np.linalg.norm(move) < distance:
            best, distance = x, np.linalg.norm(move)
    assert best is not None
    return best


# multiples of 1/4 up to 2: equal, opposite, dependent and zero rows are common
entries = st.integers(-8, 8).map(lambda n: n / 4)


def rows_of(count: int, size: int) -> st.SearchStrategy[Tensor]:
    row = st.lists(entries, min_size=size, max_size=size)
    return st.lists(row, min_size=count, max_size=count).map(lambda values: torch.tensor(values, dtype=torch.float64))


@settings(max_examples=250, deadline=None)
@given(G=st.integers(1, 5).flatmap(lambda size: rows_of(4, size)))
def test_three_rows_are_solved_exactly_however_they_depend_on_each_other(G: Tensor) -> None:
    z = solve_three(G @ G.mT)
    assert (z >= 0).all()
    x = (G[-1] + z @ G[:-1]).numpy()
    np.testing.assert_allclose(x, reference(G), rtol=0, atol=1e-7)


@settings(max_examples=120, deadline=None)
@given(G=st.tuples(st.integers(1, 6), st.integers(1, 5)).flatmap(lambda shape: rows_of(shape[0] + 1, shape[1])))
def test_any_number_of_rows_is_solved_exactly_however_they_depend_on_each_other(G: Tensor) -> None:
    np.testing.assert_allclose(nearest(G).numpy(), reference(G), rtol=0, atol=1e-7)


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(3, 40), noise=st.sampled_from([1e-6, 1e-3, 0.1, 1.0]))
def test_three_rows_agree_with_least_squares_also_where_they_are_nearly_parallel(
    seed: int, size: int, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    bundle = rng.choice([-1.0, 1.0], (4, 1)) * rng.normal(size=size) + noise * rng.normal(size=(4, size))
    G = torch.from_numpy(bundle * 10.0 ** rng.uniform(-4, 4, (4, 1)))
    z = solve_three(G @ G.mT)
    x = (G[-1] + z @ G[:-1]).numpy()
    unit = (G[:-1] / torch.linalg.vector_norm(G[:-1], dim=1, keepdim=True)).numpy()
    # min || unit^T t + v ||, t >= 0: the same program, without a Gram matrix
    t, _ = optimize.nnls(unit.T, -G[-1].numpy())
    # rows that differ by 1e-6 are told apart by 1e-12 in a Gram matrix: what is left of that is a few of those 1e-6
    np.testing.assert_allclose(
        x, G[-1].numpy() + unit.T @ t, rtol=0, atol=5e-6 * float(torch.linalg.vector_norm(G[-1]))
    )


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10**6), rho=st.sampled_from([0.05, 0.3]))
def test_with_a_margin_both_solvers_find_what_the_reference_finds(seed: int, rho: float) -> None:
    G = torch.from_numpy(np.random.default_rng(seed).normal(size=(4, 6)))  # independent rows: any margin can be kept
    np.testing.assert_allclose(nearest(G, rho).numpy(), reference(G, rho), rtol=0, atol=1e-6)


def test_a_batch_with_leading_dimensions_is_solved_as_each_alone() -> None:
    rng = np.random.default_rng(0)
    G = torch.from_numpy(rng.integers(-2, 3, (5, 7, 4, 3)) / 2.0)  # 5 clients, 7 tensors
    grams = G @ G.mT
    together = solve_three(grams)
    assert together.shape == (5, 7, 3)
    for client in range(5):
        for tensor in range(7):
            assert torch.equal(together[client, tensor], solve_three(grams[client, tensor]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [3, 10, 30, 100, 200])
@pytest.mark.parametrize("size", [1, 2, 3, 10, 64])
def test_rows_may_outnumber_their_entries(size: int, count: int, dtype: torch.dtype) -> None:
    for seed in range(6):
        rng = np.random.default_rng([size, count, seed])
        # rows all around leave only 0, rows of one side more
        common = [0.0, 0.3, 1.0][seed % 3] * rng.normal(size=size)
        G = torch.from_numpy(np.vstack([common + rng.normal(size=(count, size)), rng.normal(size=size)])).to(dtype)
        z = solve(compute_gram(list(G), 0, size))
        assert z is not None
        assert (z >= 0).all()
        x = (G[-1] + z @ G[:-1]).double()
        rows, v = G[:-1].double(), G[-1].double()
        unit = (rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)).numpy()
        # min || unit^T t + v ||, t >= 0, without a Gram matrix
        t, _ = optimize.nnls(unit.T, -v.numpy(), maxiter=100 * count)
        off = torch.linalg.vector_norm(x - v - torch.from_numpy(unit.T @ t)) / torch.linalg.vector_norm(v)
        assert off <= (1e-2 if dtype == torch.float32 else 1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_a_margin_rows_may_outnumber_their_entries_too(dtype: torch.dtype) -> None:
    # (1, 0) and (0, 1) twenty times each, rho = 1/2, v = (-3, 4) of length 5: x_1 >= 5/2 and x_2 >= 5/2, so x = (5/2,
    # 4)
    G = torch.tensor([(1.0, 0), (0, 1)] * 20 + [(-3, 4)], dtype=dtype)
    z = solve(G @ G.mT, rho=0.5)
    assert z is not None
    torch.testing.assert_close(G[-1] + z @ G[:-1], torch.tensor([2.5, 4], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_z_has_the_dtype_of_the_vectors(dtype: torch.dtype) -> None:
    G = matrix((2, 0), (0, 1), (1, 1), (-1, 2)).to(dtype)
    for z in (solve_three(G @ G.mT), solve(G @ G.mT)):
        assert z is not None
        assert z.dtype == dtype
        assert z.tolist() == pytest.approx([0.5, 0, 0])


def test_in_float32_random_and_correlated_programs_are_solved_to_its_precision() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        bundle = rng.choice([-1.0, 1.0], (4, 1)) * rng.normal(size=50) + 10.0 ** rng.uniform(-3, 0.5) * rng.normal(
            size=(4, 50)
        )
        G = torch.from_numpy(bundle).float()
        x = G[-1] + solve_three(G @ G.mT) @ G[:-1]
        cosines = (G[:-1] @ x) / torch.linalg.vector_norm(G[:-1], dim=1) / torch.linalg.vector_norm(G[-1])
        assert cosines.min() > -2 * (nnqp.MARGIN * torch.finfo(torch.float32).eps) ** 0.5
        exact = nearest(G.double())
        assert torch.linalg.vector_norm(x - exact) <= 1e-2 * torch.linalg.vector_norm(G[-1])


@pytest.mark.parametrize("rows", [2, nnqp.MAX_PAIRED_ROWS, nnqp.MAX_PAIRED_ROWS + 1])
def test_long_rows_have_the_gram_matrix_of_short_ones(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(vector, "PIECES_SIZE", 1)  # in pieces, of which the last is a short one
    size = 2 * vector.MIN_PIECE + 5
    G = torch.randn(rows, size, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
    torch.testing.assert_close(compute_gram(list(G), 3, size), G[:, 3:] @ G[:, 3:].mT, rtol=1e-12, atol=1e-9)


def test_a_program_is_solved_where_v_goes_against_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nnqp, "MIN_PIECE", 0)
    G = matrix((1, 1, 0, 2, 0), (2, -1, 0, 0, 1))
    v, tensors = matrix((1, 3, -4, -1, -1))[0], [slice(0, 2), slice(2, 3), slice(3, 5)]
    # products 4 and -1; 0 and 0; -2 and -1
    assert find_conflicts(list(G), v, tensors, 0.0) == [slice(0, 2), slice(3, 5)]
    assert find_conflicts(list(G), -v, tensors, 0.0) == [slice(0, 2)]
    assert find_conflicts(list(G), v * torch.nan, tensors, 0.0) == tensors
    assert find_conflicts(list(G.abs() * 1e300), v.abs() * 1e300, tensors, 0.0) == [
        slice(0, 2),
        slice(3, 5),
    ]  # inf, 0, inf
    assert find_conflicts(list(G), v, tensors, 0.1) == tensors  # a margin depends on lengths
    assert find_conflicts(list(G.bfloat16()), v.bfloat16(), tensors, 0.0) == tensors
    monkeypatch.undo()
    assert find_conflicts(list(G), v, tensors, 0.0) == tensors  # so few entries are no work
