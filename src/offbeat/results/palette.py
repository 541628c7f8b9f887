"""Which colour and line a method has: the same one in every figure and on every page.

Eight hues that people who see no red or no green can tell apart, each for white and for dark paper, times four kinds of
line. Built-in methods have theirs for good. A variant of one, `fedbuff(k=2)`, keeps its hue and takes another line; any
other name takes the hue its hash says, or the next that nobody in the picture has.
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

Slot = tuple[int, Dash]  # a hue and a line
BUILT_IN: dict[str, Slot] = {
    name: (hue, dash)
    for dash, names in zip(DASHES, (SOLID, DASHED, DOTTED), strict=False)
    for hue, name in enumerate(names)
    if name is not None
}


@dataclass(frozen=True)
class Style:
    colour: str  # on white
    dark: str  # on dark
    dash: Dash


def styles(names: Iterable[str]) -> dict[str, Style]:
    """One a name, whatever their order; beyond 32 names some share one."""
    given = list(dict.fromkeys(names))
    taken = {name: BUILT_IN[name] for name in given if name in BUILT_IN}
    for name in sorted(set(given) - taken.keys()):
        wishes = list(_wishes(name, {hue for hue, _ in taken.values()}))
        taken[name] = next((slot for slot in wishes if slot not in taken.values()), wishes[0])
    return {name: Style(*HUES[taken[name][0]], taken[name][1]) for name in given}


def _wishes(name: str, seen: set[int]) -> Iterator[Slot]:
    """What a name would like, best first; `seen`: hues that are in the picture."""
    base = name.partition("(")[0]
    if base in BUILT_IN:
        yield from ((BUILT_IN[base][0], dash) for dash in DASHES)
    start = crc32(name.encode(errors="replace")) % len(HUES)
    hues = [(start + i) % len(HUES) for i in range(len(HUES))]
    hues.sort(key=lambda hue: hue in seen)  # stable: in the order of the hash
    yield from ((hue, dash) for dash, hue in product(DASHES, hues))
