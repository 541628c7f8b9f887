"""Groups of clients by speed, and the examples on which each client is evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import torch
from torch import Tensor

from offbeat.core.protocol import LocalWork
from offbeat.scenario import SimulatedWorld
from offbeat.scenario.data import Dataset
from offbeat.training import ACTIVE, SLOWEST, STRAGGLERS, ClientData, Evaluator, Survey, Surveyor

ON_TEST, ON_TRAINING = "test examples", "training examples"


def expected_seconds(world: SimulatedWorld, clients: Iterable[int]) -> dict[int, float]:
    """Return the expected duration of the first job of each client: download, training on all its data, upload."""
    return {client: world.time_job(client, 0, LocalWork(), world.counts[client], 0.0).expected for client in clients}


def group_by_speed(seconds: Mapping[int, float], active: float = 0.5) -> dict[str, list[int]]:
    """Group clients into the slowest quarter, active clients and stragglers; no groups if all are equally fast.

    The quarter is rounded down but not empty; of equally slow clients it contains those with higher numbers. Active
    clients are the fastest share (rounded up) and all that are as fast as the slowest of these.
    """
    order = sorted(seconds, key=lambda client: (seconds[client], client))
    if not order or seconds[order[0]] == seconds[order[-1]]:
        return {}
    fastest = max(1, ceil(active * len(order) - 1e-9))  # 0.55 * 100 is 55.00000000000001, which must not round up to 56
    limit = seconds[order[fastest - 1]]
    groups = {
        SLOWEST: order[-max(1, len(order) // 4) :],
        ACTIVE: [client for client in order if seconds[client] <= limit],
        STRAGGLERS: [client for client in order if seconds[client] > limit],
    }
    return {name: sorted(members) for name, members in groups.items() if members}


def class_shares(data: ClientData, members: Sequence[int], classes: int) -> Tensor:
    """Return the share of each class among the examples of these clients."""
    counts = sum(torch.bincount(data.client_labels(client).flatten(), minlength=classes) for client in members)
    assert isinstance(counts, Tensor)
    return counts.double() / counts.sum()


def tests_of_owners(data: Dataset, parts: Sequence[Tensor]) -> ClientData | None:
    """Return each client's own test examples; None unless every client has some.

    The test examples of an owner (user, centre, station) belong to a client that has all training examples of that
    owner.
    """
    if data.groups is None or data.test_groups is None:
        return None
    size = 1 + int(max(data.groups.max(), data.test_groups.max()))
    sizes = torch.bincount(data.groups, minlength=size)
    rows = []
    for part in parts:
        in_part = torch.bincount(data.groups[part], minlength=size)
        complete = (in_part > 0) & (in_part == sizes)
        rows.append(complete[data.test_groups].nonzero().squeeze(1))
        if len(rows[-1]) == 0:  # stop early: there may be a million clients
            return None
    return ClientData.shared(data.x_test, data.y_test, rows, num_classes=data.num_classes)


def build_surveyor(
    evaluator: Evaluator, training: ClientData, tests: ClientData | None, seconds: Mapping[int, float], survey: Survey
) -> Surveyor:
    """Build the surveyor for the clients in `seconds`; it uses their test examples, or else their training examples."""
    groups = group_by_speed(seconds, survey.active)
    facts = {
        "surveyed": ON_TRAINING if tests is None else ON_TEST,
        **{name: ",".join(map(str, g)) for name, g in groups.items()},
    }
    return Surveyor(evaluator, training if tests is None else tests, groups, survey.examples, list(seconds), facts)
