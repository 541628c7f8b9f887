"""The formulas behind the metrics, from counts that can be added up.

Where a denominator is empty the score is nan, or, as scikit-learn has it, what is undefined counts 0.
scikit-learn has most of these, but for lists of labels; counts of a batch can be added to those of the next, of other
clients, of a group. The tests compare them with scikit-learn's.
"""

from __future__ import annotations

from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

AT_ONCE = 1024  # examples whose pairs are looked at together


class Confusion(NamedTuple):
    """For each class or label, in float64."""

    hits: Tensor  # predicted, and it is: true positives
    predicted: Tensor
    actual: Tensor


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """0 where there is nothing to divide by; nan stays nan, so that no broken model looks perfect."""
    return torch.where(whole == 0, torch.zeros_like(part), part / whole.masked_fill(whole == 0, 1))


def recalls(counts: Confusion) -> Tensor:
    """The share of each class that is recognised; nan for classes that do not occur."""
    return torch.where(counts.actual > 0, ratio(counts.hits, counts.actual), torch.full_like(counts.hits, nan))


def balanced_accuracy(counts: Confusion) -> float:
    """The mean recall of the classes that occur."""
    return float(recalls(counts).nanmean())


def macro_precision(counts: Confusion) -> float:
    """The mean over classes that occur or are predicted."""
    return float(ratio(counts.hits, counts.predicted)[_met(counts)].mean())


def macro_f1(counts: Confusion) -> float:
    """F1 = 2 hits / (predicted + actual), the mean over classes that occur or are predicted."""
    return float(ratio(2 * counts.hits, counts.predicted + counts.actual)[_met(counts)].mean())


def _met(counts: Confusion) -> Tensor:
    return counts.predicted + counts.actual > 0


def smape(outputs: Tensor, y: Tensor) -> Tensor:
    """Of each value: |y' - y| / ((|y'| + |y|) / 2), from 0 to 2; 0 where both are 0."""
    outputs, y = outputs.double(), y.double()
    return ratio(2 * (outputs - y).abs(), outputs.abs() + y.abs())


def dice(outputs: Tensor, places: Tensor) -> Tensor:
    """2 |A ∩ B| / (|A| + |B|) of each example and class, (n, classes); 1 where both are empty, nan stays nan."""
    both = (outputs * places).flatten(2).sum(2)
    sizes = (outputs + places).flatten(2).sum(2)
    empty = sizes == 0
    # 0 / 0 would spoil the gradient
    return torch.where(empty, torch.ones_like(both), 2 * both / sizes.masked_fill(empty, 1))


def cox(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """The negative log partial likelihood over the number of examples, Breslow's ties; 0 where nobody had the event.

    -1/n Σ_{i: event} (h_i - log Σ_{j: t_j >= t_i} exp h_j)
    """
    order = torch.argsort(time, descending=True, stable=True)
    risk, time, event = risk[order], time[order], event[order]
    last = torch.searchsorted(-time, -time, right=True) - 1  # of those with the same time: all of them are at risk
    at_risk = torch.logcumsumexp(risk, 0)[last]
    return ((at_risk - risk) * event).sum() / len(risk)


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> float:
    """Harrell's C: of all pairs whose order is known, the share in which who had the event first was said to be at
    higher risk; equal risks count half. The order of i before j is known if i had the event and j was seen later, or
    was seen last at that very time without it. nan without such a pair, or with a risk that is nan.
    """
    if bool(risk.isnan().any()):
        return nan
    known = agree = 0.0
    happened = event > 0
    for part in torch.split(happened.nonzero().squeeze(1), AT_ONCE):
        after = (time > time[part, None]) | ((time == time[part, None]) & ~happened)
        higher = (risk[part, None] > risk).double() + 0.5 * (risk[part, None] == risk).double()
        known += float(after.sum())
        agree += float((higher * after).sum())
    return agree / known if known else nan
