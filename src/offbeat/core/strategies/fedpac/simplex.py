"""The best mixture of heads for each client: the minimum of a quadratic form over the simplex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = "NDArray[np.float32 | np.float64]"

MIN_WEIGHT = 1e-3  # smaller weights become zero
MATRIX_ENTRIES = 1 << 20  # entries of all matrices processed at once
BLOCK = 1 << 14  # entries of h multiplied at once, to stay in the caches
MIN_EIGENVALUE = 0.01  # eigenvalues of indefinite matrices below this are dropped


def mixture_weights(h: Sequence[Matrix] | Matrix, v: Matrix) -> list[Matrix | None]:
    """Return the weights of the m heads for each of m clients, None without a solution.

    Shapes: h [m, classes * width], v [m].
    """
    products = np.zeros((len(h), len(h)))
    for a in range(0, len(h[0]), BLOCK):
        block = np.array([row[a : a + BLOCK] for row in h], dtype=np.float64)
        block -= block.mean(0)  # only differences count; a common part would add rounding errors
        products += block @ block.T
    rows: list[Matrix | None] = []
    clients_at_once = max(1, MATRIX_ENTRIES // len(v) ** 2)
    for a in range(0, len(v), clients_at_once):
        part = products[a : a + clients_at_once]
        # D_i[j, l] = sum_y <h_i - h_j, h_i - h_l>, expanded so that one matrix product serves all clients
        D = part.diagonal(a)[:, None, None] - part[:, :, None] - part[:, None, :] + products
        rows += map(drop_small_weights, simplex_minima(np.diag(v) + D))
    return rows


def simplex_minimum(Q: Matrix) -> Matrix | None:
    """Return argmin a^T Q a with a >= 0, sum a = 1; None without a solution."""
    return simplex_minima(Q[None])[0]


def simplex_minima(Q: Matrix) -> list[Matrix | None]:
    """Return the minimum of `simplex_minimum` for several matrices.

    With Q = L^T L let z >= 0 minimize ||L z||^2 + (sum z - 1)^2. On a ray z = s a the minimum over s is q / (1 + q),
    q = a^T Q a, which increases with q. So the best ray contains the solution a = z / sum z.
    """
    from scipy.optimize import nnls  # slow import, needed by few methods

    scale = np.abs(Q).max((1, 2), initial=0.0)
    valid = (scale > 0) & (scale < np.inf)
    if not valid.all():
        Q, scale = np.where(valid[:, None, None], Q, 0.0), np.where(valid, scale, 1.0)
    L = _factors(Q) / np.sqrt(scale)[:, None, None]
    A, b = np.concatenate([L, np.ones_like(L[:, :1])], axis=1), np.zeros(Q.shape[1] + 1)
    b[-1] = 1.0
    minima: list[Matrix | None] = []
    for A_i, nonzero in zip(A, L.any((1, 2)).tolist(), strict=True):
        try:
            z = nnls(A_i, b)[0] if nonzero else None
        except RuntimeError:
            z = None
        minima.append(None if z is None else z / z.sum())
    return minima


def drop_small_weights(a: Matrix | None) -> Matrix | None:
    """Set small weights to zero and rescale the others to sum to 1; None if none is left."""
    if a is None:
        return None
    a = np.where(a < MIN_WEIGHT, 0.0, a)
    rest = a.sum()
    return a / rest if rest > 0 else None


def _factors(Q: Matrix) -> Matrix:
    """Return L with L^T L = Q for each Q; zeros if there is none."""
    try:
        return np.linalg.cholesky(Q).mT
    except np.linalg.LinAlgError:
        return np.stack([_factor(matrix) for matrix in Q])


def _factor(Q: Matrix) -> Matrix:
    """Return L with L^T L = Q; for a Q that is not positive semidefinite, eigenvalues below 0.01 are dropped."""
    factor: Matrix
    try:
        factor = np.linalg.cholesky(Q).T
    except np.linalg.LinAlgError:
        try:
            values, vectors = np.linalg.eigh(Q)
        except np.linalg.LinAlgError:
            return np.zeros_like(Q)
        rounding = len(Q) * np.finfo(Q.dtype).eps * values[-1]
        values = np.where(values >= (0.0 if values[0] >= -rounding else MIN_EIGENVALUE), values, 0.0)
        factor = np.sqrt(values)[:, None] * vectors.T
    return factor
