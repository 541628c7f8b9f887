"""Who is slow, what the slow ones hold, and on which examples of their own clients are evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import torch
from torch import Tensor

from offbeat.core.protocol import LocalWork
from offbeat.scenario.data import Dataset
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import ACTIVE, SLOWEST, STRAGGLERS, Evaluator, Survey, Surveyor

ON_TEST, ON_TRAINING = "test examples", "training examples"


def expected_seconds(world: SimulatedWorld, clients: Iterable[int]) -> dict[int, float]:
    """What the first job of each is expected to take on all its data: download, the experiment's training, upload."""
    return {client: world.time_job(client, 0, LocalWork(), world.counts[client], 0.0).expected for client in clients}


def group_by_speed(seconds: Mapping[int, float], active: float = 0.5) -> dict[str, list[int]]:
    """The slowest quarter, the active and the stragglers; none of these where all are equally fast.

    The quarter is a fourth of the clients rounded down, at least one, of equally slow ones those with the higher
    numbers. Active is the given share (rounded up) and whoever is as fast as the slowest of it: equals stay together.
    """
    order = sorted(seconds, key=lambda client: (seconds[client], client))
    if not order or seconds[order[0]] == seconds[order[-1]]:
        return {}
    fastest = max(1, ceil(active * len(order) - 1e-9))  # 0.55 * 100 is 55.00000000000001: no 56th for that
    limit = seconds[order[fastest - 1]]
    made = {
        SLOWEST: order[-max(1, len(order) // 4) :],
        ACTIVE: [client for client in order if seconds[client] <= limit],
        STRAGGLERS: [client for client in order if seconds[client] > limit],
    }
    return {name: sorted(members) for name, members in made.items() if members}


def class_shares(data: ClientData, members: Sequence[int], classes: int) -> Tensor:
    """How often each class occurs among the examples of these clients."""
    counts = sum(torch.bincount(data.client_labels(client).flatten(), minlength=classes) for client in members)
    assert isinstance(counts, Tensor)
    return counts.double() / counts.sum()


def tests_of_owners(data: Dataset, parts: Sequence[Tensor]) -> ClientData | None:
    """The test examples of each client's owners (user, centre, station); None unless every client has some of its own.

    An owner's test examples are a client's if the client holds all of the owner's training examples.
    """
    if data.groups is None or data.test_groups is None:
        return None
    size = 1 + int(max(data.groups.max(), data.test_groups.max()))
    all_of = torch.bincount(data.groups, minlength=size)
    rows = []
    for part in parts:
        held = torch.bincount(data.groups[part], minlength=size)
        whole = (held > 0) & (held == all_of)
        rows.append(whole[data.test_groups].nonzero().squeeze(1))
        if len(rows[-1]) == 0:  # at once: there may be a million clients
            return None
    return ClientData.shared(data.x_test, data.y_test, rows, num_classes=data.num_classes)


def build_surveyor(
    evaluator: Evaluator, training: ClientData, tests: ClientData | None, seconds: Mapping[int, float], survey: Survey
) -> Surveyor:
    """Evaluates clients, those of whom `seconds` tells, on their test examples, where each has some, else on those
    they train on.
    """
    found = group_by_speed(seconds, survey.active)
    facts = {
        "surveyed": ON_TRAINING if tests is None else ON_TEST,
        **{name: ",".join(map(str, g)) for name, g in found.items()},
    }
    return Surveyor(evaluator, training if tests is None else tests, found, survey.examples, list(seconds), facts)
