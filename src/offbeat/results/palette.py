"""Colours and line styles of methods, the same in all figures and on all pages.

There are eight hues that are distinguishable with red-green colour blindness, each in a version for white and for dark
backgrounds, and four line styles. Built-in methods have fixed ones. A variant such as `fedbuff(k=2)` keeps its method's
hue with another line style. Other names get a hue from their hash, or the next one that the figure does not use yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal
from zlib import crc32

Dash = Literal["solid", "dashed", "dotted", "dashdot"]
DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted", "dashdot")
HUES = (  # on white, on dark
    ("#1F2F8C", "#6A6FE0"),  # navy
    ("#E0701C", "#D9761A"),  # orange
    ("#026B6C", "#4FB596"),  # teal
    ("#A17EF2", "#AE9BFF"),  # violet
    ("#0F67BD", "#9CCBFF"),  # blue
    ("#665000", "#E0CC3C"),  # olive
    ("#E26BA3", "#B85A86"),  # rose
    ("#33262E", "#E8F0DC"),  # ink
)
SOLID = ("fedcompass", "fedasync", "fedbuff", "aso_fed", "orthofl", "fed_ogd", "fedpsa", "fedavg")
DASHED = ("fedprox", "fedadam", "fedavgm", "ca2fl", "fedat", "fedfa", "fedpac", "safa")
DOTTED = ("mifa", "flanp", "gradma", None, None, "local", None, "global")

Slot = tuple[int, Dash]  # hue number and line style
BUILT_IN_SLOTS: dict[str, Slot] = {
    name: (hue, dash)
    for dash, names in zip(DASHES, (SOLID, DASHED, DOTTED), strict=False)
    for hue, name in enumerate(names)
    if name is not None
}


@dataclass(frozen=True)
class MethodStyle:
    """Colour and line style of a method."""

    colour: str  # on a white background
    dark: str  # on a dark background
    dash: Dash


def method_styles(names: Iterable[str]) -> dict[str, MethodStyle]:
    """Return a style for each name, independent of their order; more than 32 names share styles."""
    unique = list(dict.fromkeys(names))
    slots = {name: BUILT_IN_SLOTS[name] for name in unique if name in BUILT_IN_SLOTS}
    for name in sorted(set(unique) - slots.keys()):
        preferred = list(_preferred_slots(name, {hue for hue, _ in slots.values()}))
        slots[name] = next((slot for slot in preferred if slot not in slots.values()), preferred[0])
    return {name: MethodStyle(*HUES[slots[name][0]], slots[name][1]) for name in unique}


def _preferred_slots(name: str, used_hues: set[int]) -> Iterator[Slot]:
    """Yield all slots in the order of preference."""
    if (base := name.partition("(")[0]) in BUILT_IN_SLOTS:
        yield from ((BUILT_IN_SLOTS[base][0], dash) for dash in DASHES)
    start = crc32(name.encode(errors="replace")) % len(HUES)
    hues = [(start + i) % len(HUES) for i in range(len(HUES))]
    hues.sort(key=lambda hue: hue in used_hues)  # stable, so the order of the hash remains
    yield from ((hue, dash) for dash, hue in product(DASHES, hues))
