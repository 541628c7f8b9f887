"""Does what came out here agree with what a paper printed? One rule for all tables, stated on every page."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Literal

from offbeat.core.errors import counted
from offbeat.metrics.intervals import LEVEL, Interval, interval, paired, t_quantile
from offbeat.papers.entries import Entry, Printed

Verdict = Literal["reproduced", "partly", "not", "not comparable"]
Holds = Literal["holds", "open", "contradicted", "missing"]
MARGIN = 0.5  # of the paper's, that the winner must have here

LEAST = 3  # seeds: of two an interval says next to nothing

RULE = """\
1. **Order.** Of every two methods that the paper tells apart (their values differ by more than √(s₁² + s₂²), where s
   are the spreads it prints, or where it prints none ours; or its text says so) the paired difference over our seeds is
   looked at. The order *holds* where its 95 % interval lies on the paper's side of 0. It is *contradicted* where it
   lies on the other side even when widened for the number of orders that are looked at (Bonferroni), and *open* else.
2. **Margin.** The method that the claim is about must be first in our means, but for its own variants, by at least half
   of the paper's margin to the next one.
3. **Value.** The paper's value lies in our 95 % interval, widened by the paper's spread.

**reproduced**: nothing is contradicted; more than half of the orders hold, also of those of the claim's method, or,
where the claim is about no single method, all that the text states; margin and value (of the claim's method) are there.
**not**: an order of the claim's method is contradicted, or more orders are contradicted than hold. **partly**: all
between. Where the paper tells no two methods apart, values decide: all, some or none. **not comparable**: made-up data
or other than the paper's, less than the paper's size, fewer than three seeds, rows that were not run, runs that end at
a target of which some are missing (the slowest), or seconds of another machine."""

Ours = Mapping[str, Mapping[int, float]]  # method -> seed -> value, in the paper's unit


@dataclass(frozen=True)
class Pair:
    """Two methods that the paper tells apart."""

    better: str
    worse: str
    holds: Holds
    difference: Interval  # ours, above 0 on the paper's side


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    reasons: tuple[str, ...]
    pairs: tuple[Pair, ...]
    inside: Mapping[str, bool]  # of each method that both have: is the paper's value in the widened interval?


def judge(
    entry: Entry,
    ours: Ours,
    paper_size: bool = True,
    other_data: str = "",
    bounds: Collection[str] = (),
    slowest_missing: bool = False,
) -> Judged:
    """`ours`: of finished runs. `paper_size`: were they as large and long as the paper's? `other_data`: what is in
    the place of its data. `bounds`: methods whose mean is only a bound, for not every seed got there.
    `slowest_missing`: which runs are there depends on how quick they were.
    """
    apart = decided(entry, ours)
    pairs = tuple(_pair(better, worse, entry, ours, len(apart)) for better, worse in apart)
    inside = {
        name: within(printed, ours[name])
        for name, printed in entry.printed.items()
        if ours.get(name) and isfinite(printed.value) and entry.quantity.same_unit and name not in bounds
    }
    why_not = _not_comparable(entry, ours, paper_size, other_data, slowest_missing)
    if not (why_not or pairs or inside):
        why_not = "there is no value of the paper to look for"
    if why_not:
        return Judged("not comparable", (why_not, *_order_told(pairs)), pairs, inside)
    if not pairs:
        found = sum(inside.values())
        verdict: Verdict = "reproduced" if found == len(inside) else "partly" if found else "not"
        return Judged(verdict, (f"{found} of {len(inside)} values lie in our widened intervals",), pairs, inside)
    margin, told = _margin(entry, ours)
    value = entry.winner is None or (inside.get(entry.winner, True) and entry.winner not in bounds)
    reasons = [*_order_told(pairs), told]
    if entry.winner in bounds:
        reasons.append(f"{entry.winner} did not get there in every seed: its value is not known")
    if entry.winner is not None and entry.winner in inside:
        reasons.append(f"the paper's value of {entry.winner} lies {'in' if value else 'outside'} our widened interval")
    return Judged(_verdict(entry, pairs, margin and value), tuple(filter(None, reasons)), pairs, inside)


def _verdict(entry: Entry, pairs: tuple[Pair, ...], rest: bool) -> Verdict:
    held, against = (sum(pair.holds == how for pair in pairs) for how in ("holds", "contradicted"))
    own = [p for p in pairs if entry.winner in (p.better, p.worse) and not {p.better, p.worse} & set(entry.kin)]
    if against > held or any(pair.holds == "contradicted" for pair in own):
        return "not"
    stated = [p for p in pairs if (p.better, p.worse) in entry.order]
    if entry.winner is None and stated:
        claim = all(pair.holds == "holds" for pair in stated)
    else:
        claim = not own or 2 * sum(pair.holds == "holds" for pair in own) > len(own)
    return "reproduced" if claim and rest and not against and 2 * held > len(pairs) else "partly"


def decided(entry: Entry, ours: Ours | None = None) -> list[tuple[str, str]]:
    """(better, worse): whom the paper tells apart."""
    spreads = {name: _spread(entry, name, (ours or {}).get(name, {})) for name in entry.printed}
    told = [
        (one, other)
        for one, other in permutations(entry.printed, 2)
        if _lead(entry, one, other) > sqrt(spreads[one] ** 2 + spreads[other] ** 2)
    ]
    return [*told, *(pair for pair in entry.order if pair not in told)]


def _spread(entry: Entry, name: str, ours: Mapping[int, float]) -> float:
    printed = entry.printed[name].spread
    if printed is not None:
        return printed
    return stdev(ours.values()) if len(ours) > 1 and entry.quantity.same_unit else 0.0


def _lead(entry: Entry, one: str, other: str) -> float:
    """In the paper; of one that did not get there, none."""
    mine, theirs = entry.printed[one].value, entry.printed[other].value
    if not isfinite(mine):
        return 0.0
    return mine - theirs if entry.quantity.better == "more" else theirs - mine


def _pair(better: str, worse: str, entry: Entry, ours: Ours, orders: int) -> Pair:
    mine, theirs = ours.get(better, {}), ours.get(worse, {})
    more = entry.quantity.better == "more"
    lead = paired(mine, theirs) if more else paired(theirs, mine)
    holds: Holds = "open"
    if lead.seeds == 0:
        holds = "missing"
    elif lead.excludes_zero and lead.mean > 0:
        holds = "holds"
    elif lead.seeds > 1 and -lead.mean > lead.half * _wider(lead.seeds - 1, orders):
        holds = "contradicted"
    return Pair(better, worse, holds, lead)


def _wider(degrees: int, orders: int) -> float:
    """How much wider an interval must be for all of so many to be right at once."""
    return t_quantile(degrees, 1 - (1 - LEVEL) / orders) / t_quantile(degrees)


def within(printed: Printed, given: Mapping[int, float]) -> bool:
    """Never of one seed, which has no interval."""
    found = interval(list(given.values()))
    return abs(printed.value - found.mean) <= found.half + (printed.spread or 0.0)


def _margin(entry: Entry, ours: Ours) -> tuple[bool, str]:
    """Is the claim's method first here, by half of the paper's margin at least? And in words."""
    if entry.winner is None:
        return True, ""
    sign = 1.0 if entry.quantity.better == "more" else -1.0
    rivals = [worse for better, worse in entry.order if better == entry.winner]
    rivals += [name for name in entry.printed if name not in (entry.winner, *entry.kin, *rivals)]
    means = {name: fmean(ours[name].values()) for name in (entry.winner, *rivals) if ours.get(name)}
    if len(means) < 2:
        return True, ""
    lead = min(sign * (means[entry.winner] - mean) for name, mean in means.items() if name != entry.winner)
    place = 1 + sum(sign * mean > sign * means[entry.winner] for mean in means.values())
    told = f"{entry.winner} is number {place} of {len(means)} in our means"
    printed = [entry.printed[name].value for name in rivals if name in entry.printed]
    if entry.winner not in entry.printed or not any(map(isfinite, printed)) or not entry.quantity.same_unit:
        return place == 1, told
    theirs = min(sign * (entry.printed[entry.winner].value - value) for value in printed)
    digits = max(2, entry.quantity.digits) if entry.quantity.digits >= 0 else -1
    here, there = (f"{x:+.2e}" if digits < 0 else f"{x:+.{digits}f}" for x in (lead, theirs))
    return place == 1 and lead >= MARGIN * theirs, f"{told}: {here} to the best other, {there} in the paper"


def _not_comparable(entry: Entry, ours: Ours, paper_size: bool, other_data: str, slowest_missing: bool) -> str:
    if other_data:
        return f"the data is not the paper's: {other_data}"
    if not paper_size:
        return "not of the paper's size and length"
    if entry.quantity.of_machine:
        return "it is of the machine that computes, and the paper's is another"
    if not any(ours.values()):
        return "no run has a value"
    orders = decided(entry, ours)
    claimed = {name for pair in orders for name in pair} or set(entry.printed)
    claimed |= {entry.winner} if entry.winner else set()
    if not claimed:
        return "the paper prints no numbers, and its text no order"
    missing = sorted(name for name in claimed if not ours.get(name))
    if missing:
        return f"not run, or without a value: {', '.join(missing)}"
    if min(len(ours[name]) for name in claimed) < LEAST:
        return f"fewer than {LEAST} seeds"
    apart = next((pair for pair in orders if not ours[pair[0]].keys() & ours[pair[1]].keys()), None)
    if apart:
        return f"no seed is shared by {apart[0]} and {apart[1]}"
    return "runs are missing, and those that are there are the quickest" if slowest_missing else ""


def _order_told(pairs: tuple[Pair, ...]) -> list[str]:
    if not pairs:
        return []
    words = {
        "holds": ("holds", "hold"),
        "open": ("is open", "are open"),
        "contradicted": ("is contradicted", "are contradicted"),
        "missing": ("cannot be looked at", "cannot be looked at"),
    }
    counts = {how: sum(pair.holds == how for pair in pairs) for how in words}
    told = ", ".join(f"{count} {words[how][count > 1]}" for how, count in counts.items() if count)
    against = "; ".join(f"{p.worse} beats {p.better}" for p in pairs if p.holds == "contradicted")
    orders = f"of {counted(len(pairs), 'order')} {told}"
    return [orders + (f" ({against})" if against else "")]
