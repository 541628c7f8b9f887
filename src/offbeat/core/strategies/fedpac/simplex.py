"""Whose heads help whom: for each client the mixture of heads that costs least, a quadratic form over the simplex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]

SMALL = 1e-3  # weights under this count as zero
MANY = 1 << 20  # entries of matrices worked on at once
WIDE = 1 << 14  # entries of h multiplied at once, so that they stay in the caches
KEPT = 0.01  # the least eigenvalue kept of a matrix that is not positive semidefinite


def weights(h: Sequence[Matrix] | Matrix, v: Matrix) -> list[Matrix | None]:
    """For each of m clients its weights for the m heads, None without a solution. h: [m, classes * width], v: [m]."""
    products = np.zeros((len(h), len(h)))
    for a in range(0, len(h[0]), WIDE):
        some = np.array([row[a : a + WIDE] for row in h], dtype=np.float64)
        some -= some.mean(0)  # only differences count below; what all have in common would leave its rounding in them
        products += some @ some.T
    rows: list[Matrix | None] = []
    some_clients = max(1, MANY // len(v) ** 2)
    for a in range(0, len(v), some_clients):
        own = products[a : a + some_clients]
        # D_i[j, l] = sum_y <h_i - h_j, h_i - h_l>, multiplied out: one matrix product serves all clients
        D = own.diagonal(a)[:, None, None] - own[:, :, None] - own[:, None, :] + products
        rows += map(without_small, simplex_minima(np.diag(v) + D))
    return rows


def simplex_minimum(Q: Matrix) -> Matrix | None:
    """argmin a^T Q a with a >= 0, sum a = 1; None if there is none to be found."""
    return simplex_minima(Q[None])[0]


def simplex_minima(Q: Matrix) -> list[Matrix | None]:
    """The same of several matrices.

    With Q = L^T L let z >= 0 minimise ||L z||^2 + (sum z - 1)^2. Along a ray z = s a the best s leaves q / (1 + q), q =
    a^T Q a, which grows with q: so the best ray goes through the answer, a = z / sum z.
    """
    from scipy.optimize import nnls  # slow to import, and few methods need it

    scale = np.abs(Q).max((1, 2), initial=0.0)
    fine = (scale > 0) & (scale < np.inf)
    if not fine.all():
        Q, scale = np.where(fine[:, None, None], Q, 0.0), np.where(fine, scale, 1.0)
    L = _factors(Q) / np.sqrt(scale)[:, None, None]
    A, b = np.concatenate([L, np.ones_like(L[:, :1])], axis=1), np.zeros(Q.shape[1] + 1)
    b[-1] = 1.0
    found: list[Matrix | None] = []
    for A_i, something in zip(A, L.any((1, 2)).tolist(), strict=True):
        try:
            z = nnls(A_i, b)[0] if something else None
        except RuntimeError:
            z = None
        found.append(None if z is None else z / z.sum())
    return found


def without_small(a: Matrix | None) -> Matrix | None:
    """Small weights become zero, and the others sum to 1 again; None where none is left."""
    if a is None:
        return None
    a = np.where(a < SMALL, 0.0, a)
    total = a.sum()
    return a / total if total > 0 else None


def _factors(Q: Matrix) -> Matrix:
    """L with L^T L = Q, of each Q; nothing where it has none."""
    try:
        return np.linalg.cholesky(Q).mT
    except np.linalg.LinAlgError:
        return np.stack([_factor(one) for one in Q])


def _factor(Q: Matrix) -> Matrix:
    """L with L^T L = Q; of a Q that is not positive semidefinite only eigenvalues >= 0.01 are kept."""
    factor: Matrix
    try:
        factor = np.linalg.cholesky(Q).T
    except np.linalg.LinAlgError:
        try:
            values, vectors = np.linalg.eigh(Q)
        except np.linalg.LinAlgError:
            return np.zeros_like(Q)
        rounding = len(Q) * np.finfo(Q.dtype).eps * values[-1]
        values = np.where(values >= (0.0 if values[0] >= -rounding else KEPT), values, 0.0)
        factor = np.sqrt(values)[:, None] * vectors.T
    return factor
