"""Orthogonal projection layer by layer, where a layer is one param slice. Statistics are never projected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from offbeat.core.parts.buffer_statistics import copy_client_statistics
from offbeat.core.vector import Layout, new_vector

BLOCK = 1 << 18  # entries processed at once: short layers share calls, and long vectors stay in the caches
NEGLIGIBLE = 1e-12  # per element of the squared norm: the projection on a shorter vector is zero; 0 in float64
DEPENDENT = 1e-6  # a remainder below this share of a vector's length is rounding


class Overlap(NamedTuple):
    """Result of a projection over all layers."""

    share: float  # sum <D, d> / sum <d, d>: the component of D along d
    removed: float  # ||D - D_perp||


def add_orthogonal(layout: Layout, Y: Tensor, C: Tensor, now: Tensor, then: Tensor) -> tuple[Tensor, Overlap]:
    """Return Y + D_perp, where D_perp is D = now - then without its component along d = Y - C in each layer.

    Statistics are those of Y.
    """
    new = new_vector(Y)
    blocks = list(_blocks(layout))
    scratch = new_vector(Y[: max(stop - start for start, stop, _ in blocks)])
    along = squared = removed = 0.0
    for start, stop, sizes in blocks:
        Y_b = Y[start:stop]
        D = torch.sub(now[start:stop], then[start:stop], out=new[start:stop])  # D = now - then
        d = torch.sub(Y_b, C[start:stop], out=scratch[: stop - start])  # d = Y - C
        for c, Dd, dd in _remove_along_(D, d, sizes):
            along, squared, removed = along + Dd, squared + dd, removed + c * Dd
        D.add_(Y_b)  # Y + D_perp
    copy_client_statistics(layout, new, Y)
    return new, Overlap(along / squared if squared > 0 else 0.0, removed**0.5)


def _remove_along_(D: Tensor, d: Tensor, sizes: list[int]) -> list[tuple[float, float, float]]:
    """Set D := D - c d, c = <D, d> / <d, d>, in layers of these sizes; return (c, <D, d>, <d, d>) of each."""
    layers = list(zip(D.split_with_sizes(sizes), d.split_with_sizes(sizes), strict=True))
    dots = torch.stack([dot for D_l, d_l in layers for dot in (torch.dot(D_l, d_l), torch.dot(d_l, d_l))])
    numbers = dots.tolist()  # one transfer for all layers
    negligible = _negligible(D.dtype)
    results: list[tuple[float, float, float]] = []
    for (D_l, d_l), size, Dd, dd in zip(layers, sizes, numbers[::2], numbers[1::2], strict=True):
        c = Dd / dd if dd > negligible * size else 0.0
        D_l.sub_(d_l, alpha=c)
        results.append((c, Dd, dd))
    return results


def _blocks(layout: Layout) -> Iterator[tuple[int, int, list[int]]]:
    """Group adjacent params into blocks of up to BLOCK entries, or a single longer one; yield (start, stop, sizes)."""
    start, stop, sizes = 0, 0, list[int]()
    for s in layout.of_kind("param"):
        if sizes and (s.start != stop or s.stop - start > BLOCK):
            yield start, stop, sizes
            sizes = []
        start, stop = start if sizes else s.start, s.stop
        sizes.append(s.stop - s.start)
    yield start, stop, sizes


def remove_span_(layout: Layout, d: Tensor, others: Sequence[Tensor]) -> None:
    """Set d := d - sum_j <d, q_j> q_j in every layer, where the q_j are an orthonormal basis of the others."""
    for s in layout.of_kind("param"):
        d_l = d[s.start : s.stop]
        for q in orthonormal(u[s.start : s.stop] for u in others):
            d_l.sub_(q, alpha=float(torch.dot(d_l, q)))


def orthonormal(vectors: Iterable[Tensor]) -> list[Tensor]:
    """Orthonormalize by modified Gram-Schmidt; drop vectors that almost lie in the span of earlier ones."""
    basis: list[Tensor] = []
    for u in vectors:
        length = float(torch.linalg.vector_norm(u))
        rest = u.clone()
        for q in basis:
            rest.sub_(q, alpha=float(torch.dot(rest, q)))
        rest_length = float(torch.linalg.vector_norm(rest))
        if rest_length**2 > _negligible(u.dtype) * u.numel() and rest_length >= DEPENDENT * length:
            basis.append(rest.div_(rest_length))
    return basis


def _negligible(dtype: torch.dtype) -> float:
    """Return the squared norm per element up to which a vector counts as zero."""
    return 0.0 if dtype == torch.float64 else NEGLIGIBLE
