"""Solvers for the nearest vector x to v with <x, G_i> >= rho ||v|| ||G_i|| for all rows G_i of G.

With x = v + G^T z this is the non-negative quadratic program min_z 1/2 z^T GG^T z + z^T b, z >= 0, b_i = <v, G_i> - rho
||v|| ||G_i||. It depends only on inner products, so both solvers take the Gram matrix of the rows G_1 .. G_n, v (v
last) and return z. The lengths of rows do not affect x, so rows are scaled to length one first. A row is ignored if
its squared length underflows (below tiny / eps, that is a length of 3e-16 in float32 and 1e-146 in float64).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core.vector import MIN_PIECE, split_together

Matrix = NDArray[np.float64]

BLOCK = 1 << 18  # entries processed at once, to stay in the caches
# at most this many rows, of at least this length, are multiplied pair by pair, without copying them into a matrix
MAX_PAIRED_ROWS = 8
MIN_PAIRED_LENGTH = 1 << 12
MARGIN = 64  # distances below this multiple of the rounding of a Gram matrix count as zero
# the 8 active sets of three variables, smaller ones first: among equally good ones the first counts
SETS = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1))


def find_conflicts(rows: Sequence[Tensor], v: Tensor, tensors: list[slice], rho: float) -> list[slice]:
    """Return the tensors whose program must be solved.

    Without a margin, z = 0 where v conflicts with no row, which takes one product per row to check. All tensors are
    returned for short vectors, half precision and vectors on a device.
    """
    if rho > 0 or len(v) < MIN_PIECE or not v.is_cpu or v.dtype not in (torch.float32, torch.float64):
        return tensors
    x = v.numpy()  # many small tensors: calls of numpy cost less than those of torch
    places = [(here, x[here]) for here in tensors]
    with np.errstate(over="ignore", invalid="ignore"):  # the solver handles values that are not finite
        products = np.array([[row[here].dot(x_l) for here, x_l in places] for row in (row.numpy() for row in rows)])
    unchanged = np.all((products >= 0) & (products < np.inf), axis=0)
    return [here for here, skip in zip(tensors, unchanged, strict=True) if not skip]


def compute_gram(rows: Sequence[Tensor], start: int, stop: int) -> Tensor:
    """Return the inner products of these entries of all rows, reading each row once and without long copies."""
    if len(rows) <= MAX_PAIRED_ROWS and stop - start >= MIN_PAIRED_LENGTH:
        return _pairwise_gram(rows, start, stop)
    gram = rows[0].new_zeros(len(rows), len(rows))
    width = max(1, BLOCK // len(rows))
    for a in range(start, stop, width):
        block = torch.stack([row[a : min(a + width, stop)] for row in rows])
        gram.addmm_(block, block.mT)
    return gram


def _pairwise_gram(rows: Sequence[Tensor], start: int, stop: int) -> Tensor:
    """Compute the inner product of each pair of rows, without copying the rows."""
    first, second = torch.tril_indices(len(rows), len(rows))
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    products = rows[0].new_zeros(len(pairs))
    for parts in split_together(*(row[start:stop] for row in rows)):
        products += torch.stack([torch.dot(parts[i], parts[j]) for i, j in pairs])
    gram = products.new_empty(len(rows), len(rows))
    gram[first, second] = gram[second, first] = products
    return gram


class _ScaledProgram(NamedTuple):
    """The program with rows and v scaled to length one; its solution u is z / scale."""

    cosines: Tensor  # [..., n + 1, n + 1], with zeros for an ignored row
    scale: Tensor  # [..., n], ||v|| / ||G_i||; 0 for an ignored row


def _scale_rows(gram: Tensor) -> _ScaledProgram:
    """Scale the program in float64, since differences of products of cosines follow."""
    negligible = torch.finfo(gram.dtype).tiny / torch.finfo(gram.dtype).eps
    gram = gram.double()
    squared = gram.diagonal(dim1=-2, dim2=-1)
    long = squared > negligible
    inverse = torch.where(long, squared, 1.0).rsqrt() * long
    cosines = gram * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
    return _ScaledProgram(cosines, inverse[..., :-1] * (squared * long)[..., -1:].sqrt())


@cache
def _support_masks(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return masks [8, 3] of the variables of each active set, and of the pairs 01, 02, 12."""
    members = torch.tensor(SETS, dtype=torch.float64, device=device)
    return members, members[:, (0, 0, 1)] * members[:, (1, 2, 2)]


def solve_three(gram: Tensor, rho: float = 0.0) -> Tensor:
    """Return z [..., 3] for Gram matrices [..., 4, 4], exactly and without branches on values.

    Some solution has a support of independent rows (along a dependence one can move to a smaller support) and is the
    only stationary point of this support. So the solution is the best of the at most 8 non-negative stationary points.
    """
    cosines, scale = _scale_rows(gram)
    A, b = cosines[..., :-1, :-1], (cosines[..., :-1, -1] - rho) * (scale > 0)
    members, pairs = _support_masks(A.device)
    # the program of each set [..., 8]; outside the set rows of the identity with b = 0
    a01, a02, a12 = (torch.stack([A[..., 0, 1], A[..., 0, 2], A[..., 1, 2]], -1).unsqueeze(-2) * pairs).unbind(-1)
    b0, b1, b2 = (b.unsqueeze(-2) * members).unbind(-1)
    # A_S = L D L^T, D_0 = 1: a pivot is the squared distance of a row from the span of those before it
    tau = MARGIN * torch.finfo(gram.dtype).eps
    d1 = 1.0 - a01.square()
    d1 = torch.where(apart := d1 > tau, d1, 1.0)
    l21 = (a12 - a01 * a02) / d1
    d2 = 1.0 - a02.square() - l21.square() * d1
    independent = apart & (d2 > tau)
    d2 = torch.where(independent, d2, 1.0)
    y1 = a01 * b0 - b1
    u2 = (a02 * b0 - b2 - l21 * y1) / d2  # A_S u = -b_S
    u1 = y1 / d1 - l21 * u2
    u = torch.stack([-b0 - a01 * u1 - a02 * u2, u1, u2], dim=-1)
    # an ignored row has A_ii = 0 and u_i = -b_i = 0. No matrix product: two supports may be equally good, and libraries
    # round products of many matrices differently from those of one
    first, second, third = ((0.5 * u[..., i, None]) * A[..., None, i, :] for i in range(3))
    objective = (u * (first + second + third + b.unsqueeze(-2))).sum(-1)
    feasible = independent & (u >= 0).all(-1)
    best = torch.where(feasible, objective, torch.inf).argmin(-1)
    u = u.gather(-2, best[..., None, None].expand(*best.shape, 1, 3)).squeeze(-2)
    if rho > 0:  # if no vector keeps the margin there is no solution, and v stays unchanged
        left = (A @ u.unsqueeze(-1)).squeeze(-1) + b  # <x, G_i> - rho
        u = u * (left >= -2 * tau**0.5).all(-1, keepdim=True)
    return (u * scale).to(gram.dtype)


def solve(gram: Tensor, rho: float = 0.0) -> Tensor | None:
    """Return z [n] for any number of rows; None if the solver fails or no vector keeps the margin."""
    return solve_each(gram.unsqueeze(0), rho)[0]


def solve_each(grams: Tensor, rho: float = 0.0) -> list[Tensor | None]:
    """Return z [n] of several programs with the same number of rows, checked together because most need no solver."""
    cosines, scales = (part.cpu().numpy() for part in _scale_rows(grams))
    eps = torch.finfo(grams.dtype).eps
    solutions = (_solution(*program, rho, eps) for program in zip(cosines, scales, strict=True))
    return [None if z is None else torch.from_numpy(z).to(grams) for z in solutions]


def _solution(cosines: Matrix, scale: Matrix, rho: float, eps: float) -> Matrix | None:
    """Return z [n], or None without a solution.

    The cosines of rows and v are F^T F with F = [B f]: vectors with the same inner products, in the dimension of their
    span. Without a margin u >= 0 is the non-negative least-squares solution of B u = -f. With a margin it follows from
    Lawson and Hanson's least-distance program: h = rho - B^T f, t >= 0 solves [B; h^T] t = (0, .., 0, 1),
    u = t / (1 - h^T t). No matrix is inverted, so rows may be dependent and outnumber their entries. v must be part of
    the factorization: because of rounding, products with v taken from the Gram matrix leave the range of B^T, and then
    no z is optimal.
    """
    if not np.isfinite(cosines).all():
        return None  # squares overflow
    long = scale > 0
    z = np.zeros(len(scale))
    if (cosines[:-1, -1][long] < rho).any():  # otherwise v stays unchanged, bit for bit
        from scipy.optimize import nnls  # slow import, needed by few methods

        used = np.append(long, True)
        try:
            values, vectors = np.linalg.eigh(cosines[np.ix_(used, used)])
            spanned = values > len(values) * eps * values[-1]  # smaller ones are rounding
            F = np.sqrt(values[spanned])[:, None] * vectors.T[spanned]
            B, f = F[:, :-1], F[:, -1]
            if rho == 0:
                u, _ = nnls(B, -f)
            else:
                h = rho - f @ B
                t, _ = nnls(np.vstack([B, h]), np.append(np.zeros(len(B)), 1.0))
                rest = 1.0 - h @ t  # 1 / (1 + ||x - v||^2), or 0 if no vector keeps the margin
                if not rest > MARGIN * eps:
                    return None
                u = t / rest
        except (RuntimeError, ValueError, np.linalg.LinAlgError):
            return None
        z[long] = u * scale[long]
    return z
