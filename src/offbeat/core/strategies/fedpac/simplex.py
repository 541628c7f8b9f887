"""Whose heads help whom: for each client the mixture of heads that costs least, a quadratic form over the simplex."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]

SMALL = 1e-3  # weights under this count as zero
KEPT = 0.01  # the least eigenvalue kept of a matrix that is not positive semidefinite


def weights(h: Matrix, v: Matrix) -> list[Matrix | None]:
    """For each of m clients its weights for the m heads, None without a solution. h: [m, classes * width], v: [m]."""
    h = h - h.mean(0)  # only differences count below; what all have in common would leave its rounding in them
    products = h @ h.T
    rows: list[Matrix | None] = []
    for i in range(len(v)):
        # D_i[j, l] = sum_y <h_i - h_j, h_i - h_l>, multiplied out: one matrix product serves all clients
        D = products[i, i] - products[i][:, None] - products[i][None, :] + products
        rows.append(without_small(simplex_minimum(np.diag(v) + D)))
    return rows


def simplex_minimum(Q: Matrix) -> Matrix | None:
    """argmin a^T Q a with a >= 0, sum a = 1; None if there is none to be found.

    With Q = L^T L let z >= 0 minimise ||L z||^2 + (sum z - 1)^2. Along a ray z = s a the best s leaves q / (1 + q), q =
    a^T Q a, which grows with q: so the best ray goes through the answer, a = z / sum z.
    """
    from scipy.optimize import nnls  # slow to import, and few methods need it

    scale = float(np.abs(Q).max(initial=0.0))
    if not 0 < scale < np.inf:
        return None
    try:
        L = _factor(Q) / np.sqrt(scale)
        if not L.any():
            return None
        z, _ = nnls(np.vstack([L, np.ones(len(Q))]), np.append(np.zeros(len(L)), 1.0))
    except (RuntimeError, np.linalg.LinAlgError):
        return None
    a: Matrix = z / z.sum()
    return a


def without_small(a: Matrix | None) -> Matrix | None:
    """Small weights become zero, and the others sum to 1 again; None where none is left."""
    if a is None:
        return None
    a = np.where(a < SMALL, 0.0, a)
    return a / a.sum() if a.any() else None


def _factor(Q: Matrix) -> Matrix:
    """L with L^T L = Q; of a Q that is not positive semidefinite only eigenvalues >= 0.01 are kept."""
    factor: Matrix
    try:
        factor = np.linalg.cholesky(Q).T
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(Q)
        rounding = len(Q) * np.finfo(Q.dtype).eps * values[-1]
        values = np.where(values >= (0.0 if values[0] >= -rounding else KEPT), values, 0.0)
        factor = np.sqrt(values)[:, None] * vectors.T
    return factor
