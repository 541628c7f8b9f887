"""The nearest vector to v that goes against none of the rows of G: min ||x - v|| with <x, G_i> >= rho ||v|| ||G_i||.

With x = v + G^T z it is the non-negative quadratic program min_z 1/2 z^T GG^T z + z^T b, z >= 0, b_i = <v, G_i> - rho
||v|| ||G_i||. Only inner products enter, so both solvers take the Gram matrix of the rows G_1 .. G_n, v (v last) and
return z. How long a row is makes no difference to x, so rows are scaled to length one first. A row asks for nothing
where its dtype cannot tell its squared length from zero (tiny / eps: a length of 3e-16 in float32, 1e-146 in float64),
however small the others are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core.parts.large_vectors import MIN_PIECE, split_together

Matrix = NDArray[np.float64]

BLOCK = 1 << 18  # entries worked on at once, so that they stay in the caches
FEW, LONG = 8, 1 << 12  # up to so many rows at least so long are multiplied pair by pair: a thin matrix is copied first
MARGIN = 64  # of the rounding of a Gram matrix's entries: less than this is not a distance
# the 8 active sets of three variables, none first: of equally good ones the smaller counts
SETS = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1))


def against(rows: Sequence[Tensor], v: Tensor, tensors: list[slice], rho: float) -> list[slice]:
    """The tensors whose program is to be solved. Without a margin z = 0 where v goes against no row, whatever else the
    rows do: that takes one product a row. Vectors on a device, in half precision, and short ones are not looked at so
    closely.
    """
    if rho > 0 or len(v) < MIN_PIECE or not v.is_cpu or v.dtype not in (torch.float32, torch.float64):
        return tensors
    x = v.numpy()  # tensors are many and small, and numpy's calls cost less than torch's
    places = [(here, x[here]) for here in tensors]
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is for the program to say
        products = np.array([[row[here].dot(x_l) for here, x_l in places] for row in (row.numpy() for row in rows)])
    fine = np.all((products >= 0) & (products < np.inf), axis=0)
    return [here for here, stays in zip(tensors, fine, strict=True) if not stays]


def gram_of(rows: Sequence[Tensor], start: int, stop: int) -> Tensor:
    """The inner products of these entries of all rows: each row is read once, and nothing long is copied."""
    if len(rows) <= FEW and stop - start >= LONG:
        return _pairs(rows, start, stop)
    gram = rows[0].new_zeros(len(rows), len(rows))
    width = max(1, BLOCK // len(rows))
    for a in range(start, stop, width):
        some = torch.stack([row[a : min(a + width, stop)] for row in rows])
        gram.addmm_(some, some.mT)
    return gram


def _pairs(rows: Sequence[Tensor], start: int, stop: int) -> Tensor:
    here, there = torch.tril_indices(len(rows), len(rows))
    pairs = list(zip(here.tolist(), there.tolist(), strict=True))
    found = rows[0].new_zeros(len(pairs))
    for parts in split_together(*(row[start:stop] for row in rows)):
        found += torch.stack([torch.dot(parts[i], parts[j]) for i, j in pairs])
    gram = found.new_empty(len(rows), len(rows))
    gram[here, there] = gram[there, here] = found
    return gram


class _Scaled(NamedTuple):
    """The same program with rows and v of length one; its solution u is z / scale."""

    cosines: Tensor  # [..., n + 1, n + 1], a row and a column of zeros for a row of no length
    scale: Tensor  # [..., n], ||v|| / ||G_i||; 0 where nothing is asked


def _scaled(gram: Tensor) -> _Scaled:
    """In float64, whatever the vectors are: differences of products of cosines follow."""
    nothing = torch.finfo(gram.dtype).tiny / torch.finfo(gram.dtype).eps
    gram = gram.double()
    squared = gram.diagonal(dim1=-2, dim2=-1)
    long = squared > nothing
    inverse = torch.where(long, squared, 1.0).rsqrt() * long
    cosines = gram * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
    return _Scaled(cosines, inverse[..., :-1] * (squared * long)[..., -1:].sqrt())


@cache
def _sets(device: torch.device) -> tuple[Tensor, Tensor]:
    """[8, 3]: which variables a set has, and which pairs 01, 02, 12."""
    members = torch.tensor(SETS, dtype=torch.float64, device=device)
    return members, members[:, (0, 0, 1)] * members[:, (1, 2, 2)]


def solve_three(gram: Tensor, rho: float = 0.0) -> Tensor:
    """z [..., 3] of Gram matrices [..., 4, 4]: exact, without a branch on values.

    A solution has a support whose rows are independent (along a dependence one could go on to a smaller one), and is
    then the only stationary point there. So it is the best of the at most 8 such points that are not negative.
    """
    cosines, scale = _scaled(gram)
    A, b = cosines[..., :-1, :-1], (cosines[..., :-1, -1] - rho) * (scale > 0)
    members, pairs = _sets(A.device)
    # the program of each set [..., 8]; outside it a row of the identity, and nothing asked
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
    # a row of no length has A_ii = 0: along it u is -b_i = 0, and nothing changes. No matrix product: two supports may
    # be equally good, and a library rounds products of many matrices otherwise than those of one
    first, second, third = ((0.5 * u[..., i, None]) * A[..., None, i, :] for i in range(3))
    objective = (u * (first + second + third + b.unsqueeze(-2))).sum(-1)
    feasible = independent & (u >= 0).all(-1)
    best = torch.where(feasible, objective, torch.inf).argmin(-1)
    u = u.gather(-2, best[..., None, None].expand(*best.shape, 1, 3)).squeeze(-2)
    if rho > 0:  # a margin that no vector keeps: then there is no solution, and v stays as it is
        left = (A @ u.unsqueeze(-1)).squeeze(-1) + b  # <x, G_i> - rho
        u = u * (left >= -2 * tau**0.5).all(-1, keepdim=True)
    return (u * scale).to(gram.dtype)


def solve(gram: Tensor, rho: float = 0.0) -> Tensor | None:
    """z [n] for any number of rows; None if the solver fails, or if no vector keeps the margin."""
    return solve_each(gram.unsqueeze(0), rho)[0]


def solve_each(grams: Tensor, rho: float = 0.0) -> list[Tensor | None]:
    """z [n] of each of several programs with equally many rows: most need no solver, and are looked at together."""
    cosines, scales = (part.cpu().numpy() for part in _scaled(grams))
    eps = torch.finfo(grams.dtype).eps
    found = (_solution(*program, rho, eps) for program in zip(cosines, scales, strict=True))
    return [None if z is None else torch.from_numpy(z).to(grams) for z in found]


def _solution(cosines: Matrix, scale: Matrix, rho: float, eps: float) -> Matrix | None:
    """z [n], or None.

    The cosines of rows and v are F^T F, F = [B f]: vectors with the same inner products, in as many dimensions as they
    span. Without a margin u >= 0 is the non-negative least-squares solution of B u = -f. With one it is Lawson and
    Hanson's least-distance program: h = rho - B^T f, t >= 0 that of [B; h^T] t = (0, .., 0, 1), u = t / (1 - h^T t).
    Nothing is inverted, so rows may depend on each other and outnumber their entries. Both need v in the same factor as
    the rows: products with v read off the Gram matrix leave the range of B^T by their rounding, and then no z is the
    best.
    """
    if not np.isfinite(cosines).all():
        return None  # squares that overflow
    long = scale > 0
    z = np.zeros(len(scale))
    if (cosines[:-1, -1][long] < rho).any():  # otherwise v stays as it is, to the last bit
        from scipy.optimize import nnls  # slow to import, and few methods need it

        kept = np.append(long, True)
        try:
            values, vectors = np.linalg.eigh(cosines[np.ix_(kept, kept)])
            spanned = values > len(values) * eps * values[-1]  # below that is the rounding of the Gram matrix
            F = np.sqrt(values[spanned])[:, None] * vectors.T[spanned]
            B, f = F[:, :-1], F[:, -1]
            if rho == 0:
                u, _ = nnls(B, -f)
            else:
                h = rho - f @ B
                t, _ = nnls(np.vstack([B, h]), np.append(np.zeros(len(B)), 1.0))
                rest = 1.0 - h @ t  # 1 / (1 + ||x - v||^2): 0 where no vector keeps the margin
                if not rest > MARGIN * eps:
                    return None
                u = t / rest
        except (RuntimeError, ValueError, np.linalg.LinAlgError):
            return None
        z[long] = u * scale[long]
    return z
