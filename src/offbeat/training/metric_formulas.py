"""Formulas of the metrics, computed from counts that can be added over batches, clients and groups.

scikit-learn has most of these, but only for complete lists of labels; tests compare the results. If a denominator is
zero the score is nan, or counts as 0 in a mean, as in scikit-learn.
"""

from __future__ import annotations

from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

PAIRED_EXAMPLES = 1024  # examples that are compared with all others in one operation


class Confusion(NamedTuple):
    """Counts of each class or label, in float64."""

    hits: Tensor  # true positives
    predicted: Tensor
    actual: Tensor


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Divide elementwise; the result is 0 if `whole` is 0, and nan stays nan."""
    return torch.where(whole == 0, torch.zeros_like(part), part / whole.masked_fill(whole == 0, 1))


def recalls(counts: Confusion) -> Tensor:
    """Return the recall of each class; nan for classes that do not occur."""
    return torch.where(counts.actual > 0, ratio(counts.hits, counts.actual), torch.full_like(counts.hits, nan))


def balanced_accuracy(counts: Confusion) -> float:
    """Return the mean recall of the classes that occur."""
    return float(recalls(counts).nanmean())


def macro_precision(counts: Confusion) -> float:
    """Return the mean precision of the classes that occur or are predicted."""
    return float(ratio(counts.hits, counts.predicted)[_occurs(counts)].mean())


def macro_f1(counts: Confusion) -> float:
    """Return the mean of F1 = 2 hits / (predicted + actual) over the classes that occur or are predicted."""
    return float(ratio(2 * counts.hits, counts.predicted + counts.actual)[_occurs(counts)].mean())


def _occurs(counts: Confusion) -> Tensor:
    return counts.predicted + counts.actual > 0


def smape(outputs: Tensor, y: Tensor) -> Tensor:
    """Return |y' - y| / ((|y'| + |y|) / 2) of each value, from 0 to 2; 0 if both are 0."""
    outputs, y = outputs.double(), y.double()
    return ratio(2 * (outputs - y).abs(), outputs.abs() + y.abs())


def dice(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return 2 |A ∩ B| / (|A| + |B|) of each example and class, (n, classes); 1 if both are empty, nan stays nan."""
    both = (outputs * labels).flatten(2).sum(2)
    sizes = (outputs + labels).flatten(2).sum(2)
    empty = sizes == 0
    # the gradient of 0 / 0 would be nan
    return torch.where(empty, torch.ones_like(both), 2 * both / sizes.masked_fill(empty, 1))


def cox_loss(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """Return Cox's negative log partial likelihood per example, with Breslow's ties; 0 without any event.

    -1/n Σ_{i: event} (h_i - log Σ_{j: t_j >= t_i} exp h_j)
    """
    order = torch.argsort(time, descending=True, stable=True)
    risk, time, event = risk[order], time[order], event[order]
    last = torch.searchsorted(-time, -time, right=True) - 1  # all examples with the same time are at risk
    at_risk = torch.logcumsumexp(risk, 0)[last]
    return ((at_risk - risk) * event).sum() / len(risk)


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> float:
    """Return Harrell's C: the share of comparable pairs in which the earlier event has the higher predicted risk.

    A pair (i, j) is comparable if i had the event, and j was observed longer, or equally long without the event. Equal
    risks count half. The result is nan without any comparable pair, or if a risk is nan.
    """
    if bool(risk.isnan().any()):
        return nan
    comparable = concordant = 0.0
    happened = event > 0
    for part in torch.split(happened.nonzero().squeeze(1), PAIRED_EXAMPLES):
        after = (time > time[part, None]) | ((time == time[part, None]) & ~happened)
        higher = (risk[part, None] > risk).double() + 0.5 * (risk[part, None] == risk).double()
        comparable += float(after.sum())
        concordant += float((higher * after).sum())
    return concordant / comparable if comparable else nan
