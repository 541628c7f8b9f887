"""Judge whether our results agree with the published ones. The same rule applies to all tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Literal, get_args

from offbeat.core.errors import format_count
from offbeat.metrics import LEVEL, Interval, confidence_interval, paired_difference, t_quantile
from offbeat.papers.entries import Entry, PrintedValue

Verdict = Literal["reproduced", "partly", "not", "not comparable"]
OrderStatus = Literal["holds", "open", "contradicted", "not testable"]
OurValues = Mapping[str, Mapping[int, float]]  # method -> seed -> value, in the paper's unit
MIN_MARGIN = 0.5  # share of the paper's margin that the winner needs here
MIN_SEEDS = 3  # an interval of two seeds is too wide to be useful

RULE = """\
1. **Order.** The paper distinguishes two methods if their values differ by more than √(s₁² + s₂²), where s are the
   printed spreads (ours if none are printed), or if its text states their order. For each such pair we compute the
   paired difference over our seeds. The order *holds* if the 95 % interval of this difference lies on the paper's side
   of 0. It is *contradicted* if the interval lies on the other side even when widened for the number of orders
   (Bonferroni). Otherwise it is *open*.
2. **Margin.** The method that the claim is about must have the best mean here, not counting its own variants, by at
   least half of the paper's margin to the next method.
3. **Value.** The paper's value lies in our 95 % interval, widened by the paper's spread.

**reproduced**: no order is contradicted; more than half of the orders hold, both of all orders and of those of the
claim's method (if the claim is about no single method, all orders that the text states); margin and value of the
claim's method agree. **not**: an order of the claim's method is contradicted, or more orders are contradicted than
hold. **partly**: all other cases. If the paper distinguishes no methods, the values decide: all, some or none agree.
**not comparable**: synthetic data or other data than the paper's, a smaller size than the paper's, fewer than three
seeds, methods that were not run, missing runs where runs end at a target (the missing ones are the slowest), or seconds
measured on another machine."""


@dataclass(frozen=True)
class OrderResult:
    """Our result for two methods that the paper distinguishes."""

    better: str
    worse: str
    status: OrderStatus
    difference: Interval  # positive on the paper's side


@dataclass(frozen=True)
class Judgement:
    """Verdict for an entry, with reasons."""

    verdict: Verdict
    reasons: tuple[str, ...]
    orders: tuple[OrderResult, ...]
    value_in_interval: Mapping[str, bool]  # by method: is the paper's value in the widened interval?


def judge_entry(
    entry: Entry,
    ours: OurValues,
    paper_size: bool = True,
    other_data: str = "",
    bounds: Collection[str] = (),
    slowest_missing: bool = False,
) -> Judgement:
    """Compare our values with the published entry.

    `paper_size` tells if the runs are as large and long as the paper's, `other_data` names the data used instead of the
    paper's. `bounds` are methods whose mean is only a bound, because some seeds did not reach the target.
    `slowest_missing` tells if the available runs are a selection of the fastest.
    """
    pairs = paper_orders(entry, ours)
    orders = tuple(_test_order(better, worse, entry, ours, len(pairs)) for better, worse in pairs)
    in_interval = {
        name: value_in_widened_interval(printed, ours[name])
        for name, printed in entry.printed.items()
        if ours.get(name) and isfinite(printed.value) and entry.quantity.same_unit and name not in bounds
    }
    obstacle = _find_obstacle(entry, ours, paper_size, other_data, slowest_missing)
    if not (obstacle or orders or in_interval):
        obstacle = "the paper prints no value to compare with"
    if obstacle:
        return Judgement("not comparable", (obstacle, *_summarize_orders(orders)), orders, in_interval)
    if not orders:
        agreeing = sum(in_interval.values())
        verdict: Verdict = "reproduced" if agreeing == len(in_interval) else "partly" if agreeing else "not"
        reason = f"{agreeing} of {len(in_interval)} values lie in our widened intervals"
        return Judgement(verdict, (reason,), orders, in_interval)
    margin_agrees, margin_text = _compare_margin(entry, ours)
    value_agrees = entry.winner is None or (in_interval.get(entry.winner, True) and entry.winner not in bounds)
    reasons = [*_summarize_orders(orders), margin_text]
    if entry.winner in bounds:
        reasons.append(f"{entry.winner} did not reach the target in every seed, so its value is unknown")
    if entry.winner is not None and entry.winner in in_interval:
        side = "inside" if value_agrees else "outside"
        reasons.append(f"the paper's value of {entry.winner} lies {side} our widened interval")
    verdict = _combine(entry, orders, margin_agrees and value_agrees)
    return Judgement(verdict, tuple(filter(None, reasons)), orders, in_interval)


def _combine(entry: Entry, orders: tuple[OrderResult, ...], winner_agrees: bool) -> Verdict:
    """Return the verdict; `winner_agrees` tells if margin and value of the claim's method agree."""
    count = Counter(order.status for order in orders)
    of_winner = [
        order.status
        for order in orders
        if entry.winner in (order.better, order.worse) and not {order.better, order.worse} & set(entry.variants)
    ]
    if count["contradicted"] > count["holds"] or "contradicted" in of_winner:
        return "not"
    stated = [order.status for order in orders if (order.better, order.worse) in entry.stated_orders]
    if entry.winner is None and stated:
        claim_holds = all(status == "holds" for status in stated)
    else:
        claim_holds = not of_winner or 2 * of_winner.count("holds") > len(of_winner)
    agrees = claim_holds and winner_agrees and not count["contradicted"] and 2 * count["holds"] > len(orders)
    return "reproduced" if agrees else "partly"


def paper_orders(entry: Entry, ours: OurValues | None = None) -> list[tuple[str, str]]:
    """Return the pairs (better, worse) of methods that the paper distinguishes."""
    spreads = {}
    for name, value in entry.printed.items():
        values = (ours or {}).get(name, {}).values()
        our_spread = stdev(values) if len(values) > 1 and entry.quantity.same_unit else 0.0
        spreads[name] = our_spread if value.spread is None else value.spread
    printed = [
        (better, worse)
        for better, worse in permutations(entry.printed, 2)
        if _paper_lead(entry, better, worse) > sqrt(spreads[better] ** 2 + spreads[worse] ** 2)
    ]
    return [*printed, *(pair for pair in entry.stated_orders if pair not in printed)]


def _paper_lead(entry: Entry, better: str, worse: str) -> float:
    """Return the lead of a method in the paper; 0 if the method did not reach the target."""
    first, second = entry.printed[better].value, entry.printed[worse].value
    if not isfinite(first):
        return 0.0
    return first - second if entry.quantity.better == "more" else second - first


def _test_order(better: str, worse: str, entry: Entry, ours: OurValues, orders: int) -> OrderResult:
    """Test if our paired differences have the paper's order, which is one of `orders` that are tested together."""
    first, second = ours.get(better, {}), ours.get(worse, {})
    lead = paired_difference(*((first, second) if entry.quantity.better == "more" else (second, first)))
    status: OrderStatus = "open"
    if lead.seeds == 0:
        status = "not testable"
    elif lead.excludes_zero and lead.mean > 0:
        status = "holds"
    elif lead.seeds > 1:
        # Bonferroni: all orders must be right at the same time
        widening = t_quantile(lead.seeds - 1, 1 - (1 - LEVEL) / orders) / t_quantile(lead.seeds - 1)
        status = "contradicted" if -lead.mean > lead.half * widening else "open"
    return OrderResult(better, worse, status, lead)


def value_in_widened_interval(printed: PrintedValue, ours: Mapping[int, float]) -> bool:
    """Test if the paper's value lies in our interval; never true for one seed, which has no interval."""
    interval = confidence_interval(list(ours.values()))
    return abs(printed.value - interval.mean) <= interval.half + (printed.spread or 0.0)


def _compare_margin(entry: Entry, ours: OurValues) -> tuple[bool, str]:
    """Test if the winner is first here by at least half of the paper's margin, and describe the result."""
    if entry.winner is None:
        return True, ""
    sign = 1.0 if entry.quantity.better == "more" else -1.0
    competitors = [worse for better, worse in entry.stated_orders if better == entry.winner]
    competitors += [name for name in entry.printed if name not in (entry.winner, *entry.variants, *competitors)]
    means = {name: fmean(ours[name].values()) for name in (entry.winner, *competitors) if ours.get(name)}
    if len(means) < 2:
        return True, ""
    our_margin = min(sign * (means[entry.winner] - mean) for name, mean in means.items() if name != entry.winner)
    rank = 1 + sum(sign * mean > sign * means[entry.winner] for mean in means.values())
    text = f"{entry.winner} ranks {rank} of {len(means)} by our means"
    printed = [entry.printed[name].value for name in competitors if name in entry.printed]
    if entry.winner not in entry.printed or not any(map(isfinite, printed)) or not entry.quantity.same_unit:
        return rank == 1, text
    paper_margin = min(sign * (entry.printed[entry.winner].value - value) for value in printed)
    number = f"+.{max(2, entry.quantity.digits)}f" if entry.quantity.digits >= 0 else "+.2e"
    text += f": {our_margin:{number}} to the best other method, {paper_margin:{number}} in the paper"
    return rank == 1 and our_margin >= MIN_MARGIN * paper_margin, text


def _find_obstacle(entry: Entry, ours: OurValues, paper_size: bool, other_data: str, slowest_missing: bool) -> str:
    """Return why our values cannot be compared with the paper's; empty if they can."""
    if other_data:
        return f"the data differs from the paper's: {other_data}"
    if not paper_size:
        return "the runs are smaller or shorter than the paper's"
    if entry.quantity.machine_dependent:
        return "the value depends on the machine, and the paper's differs from ours"
    if not any(ours.values()):
        return "no run has a value"
    orders = paper_orders(entry, ours)
    compared = {name for pair in orders for name in pair} or set(entry.printed)
    compared |= {entry.winner} if entry.winner else set()
    if not compared:
        return "the paper prints no numbers and states no order"
    missing = sorted(name for name in compared if not ours.get(name))
    if missing:
        return f"not run, or without a value: {', '.join(missing)}"
    if min(len(ours[name]) for name in compared) < MIN_SEEDS:
        return f"fewer than {MIN_SEEDS} seeds"
    for better, worse in orders:
        if not ours[better].keys() & ours[worse].keys():
            return f"{better} and {worse} have no seed in common"
    return "runs are missing, and the available ones are the fastest" if slowest_missing else ""


def _summarize_orders(orders: tuple[OrderResult, ...]) -> list[str]:
    """Return one sentence with the number of orders by status; none if the paper distinguishes no methods."""
    if not orders:
        return []
    count = Counter(order.status for order in orders)
    parts = [f"{count[status]} {status.removesuffix('s')}" for status in get_args(OrderStatus) if count[status]]
    reversed_orders = "; ".join(f"{o.worse} beats {o.better}" for o in orders if o.status == "contradicted")
    text = f"{format_count(len(orders), 'order')}: {', '.join(parts)}"
    return [f"{text} ({reversed_orders})" if reversed_orders else text]
