"""FedPAC, worked by hand."""

from __future__ import annotations

from itertools import product
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import offbeat
from offbeat.core.errors import ConfigError
from offbeat.core.jobs import Job
from offbeat.core.protocol import Dispatch, LocalJob, LocalWork, Note, Phase, Reject, World
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedpac import FedPAC, simplex
from offbeat.core.strategies.fedpac.halves import Halves, HeadThenBody
from offbeat.core.strategies.fedpac.simplex import drop_small_weights, mixture_weights, simplex_minimum
from offbeat.core.vector import Layout, flatten
from offbeat.engine.gate import Gate
from offbeat.testing import ScriptedEngine, layout_of
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training
from strategies import messages
from strategies.scripted_runs import TWO, actions, model_after, open_job, start

# one feature, two classes: the model is (theta; phi_0, phi_1)
PARAMS = [("body.weight", (1, 1), "param"), ("head.weight", (2, 1), "param")]
STATISTICS = [("norm.mean", (1,), "buffer"), ("norm.seen", (), "counter")]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def extras(h: Any, v: float, means: Any = (0, 0), counts: Any = (1, 1)) -> dict[str, Tensor]:
    return {"h": vector(*h), "v": vector(v), "means": vector(*means), "counts": vector(*counts)}


def opened(strategy: Any, model: list[float], clients: dict[int, int], *, statistics: bool = False) -> ScriptedEngine:
    """The engine with its first round open at time 0."""
    layout = layout_of([*PARAMS, *STATISTICS] if statistics else PARAMS)
    return start(ScriptedEngine(strategy, World(model=vector(*model), layout=layout, clients=clients)))


def notes(engine: ScriptedEngine) -> list[Note]:
    """Of the round that closed last."""
    told = [[action for action in entry.actions if isinstance(action, Note)] for entry in engine.log]
    return next(found for found in reversed(told) if found)


FIRST = extras(h=(0.5, 0), v=0.25, means=(2, 6), counts=(4, 6))
SECOND = extras(h=(0, 0.5), v=0.25, means=(5, 1), counts=(12, 18))


def after_one_round(strategy: FedPAC | None = None) -> ScriptedEngine:
    engine = opened(strategy or FedPAC(), [0, 1, 1], TWO)
    engine.arrive(0, [4, 1, 0], at=1.0, extras=FIRST)
    engine.arrive(1, [0, 0, 1], at=2.0, extras=SECOND)
    return engine


def test_two_rounds_worked_by_hand() -> None:
    engine = after_one_round()
    # theta = (10 * 4 + 30 * 0) / 40 = 1; mean head (10 * (1, 0) + 30 * (0, 1)) / 40 = (1/4, 3/4): this is evaluated
    assert engine.model.tolist() == [1, 0.25, 0.75]
    assert engine.ledger.version == 1
    told = notes(engine)
    engine.advance()
    # ||h_0 - h_1||^2 = 1/4 + 1/4 = 1/2. Client 0: D = diag(0, 1/2), V + D = diag(1/4, 3/4), so a ~ (4, 4/3), a = (3/4,
    # 1/4); 1 mirrored. phi_0 = 3/4 (1, 0) + 1/4 (0, 1), phi_1 = 1/4 (1, 0) + 3/4 (0, 1)
    torch.testing.assert_close(open_job(engine, 0).base, vector(1, 0.75, 0.25), rtol=1e-14, atol=0)
    torch.testing.assert_close(open_job(engine, 1).base, vector(1, 0.25, 0.75), rtol=1e-14, atol=0)
    # c_0 = (4 * 2 + 12 * 5) / 16 = 4.25, c_1 = (6 * 6 + 18 * 1) / 24 = 2.25
    for client in TWO:
        assert open_job(engine, client).work.extras["prototypes"].tolist() == [[4.25], [2.25]]
        assert open_job(engine, client).work.extras["known"].tolist() == [1, 1]
    assert [note.ticket for note in told] == [0, 1, None]
    assert told[0].values == pytest.approx({"own_weight": 0.75, "helpers": 1, "variance": 0.25})
    assert told[2].values == {"prototypes": 2, "unsolved": 0}

    engine.arrive(0, [3, 2, 2], at=3.0, extras=extras(h=(0, 0), v=1, means=(1, 1), counts=(10, 0)))
    engine.arrive(1, [7, 6, 0], at=4.0, extras=extras(h=(1, 1), v=2, means=(3, 8), counts=(10, 20)))
    assert engine.model.tolist() == [6, 5, 0.5]  # (30 + 210) / 40; (20 + 180) / 40, (20 + 0) / 40
    engine.advance()
    # d = 2. Client 0: diag(1, 2 + 2), a ~ (1, 1/4) = (4/5, 1/5); client 1: diag(1 + 2, 2), a ~ (1/3, 1/2) = (2/5, 3/5)
    torch.testing.assert_close(open_job(engine, 0).base, vector(6, 2.8, 1.6), rtol=1e-14, atol=0)
    torch.testing.assert_close(open_job(engine, 1).base, vector(6, 4.4, 0.8), rtol=1e-14, atol=0)
    # (10 * 1 + 10 * 3) / 20; only client 1 has class 1
    assert open_job(engine, 0).work.extras["prototypes"].tolist() == [[2], [8]]


def test_prototypes_are_sent_from_the_second_round_on() -> None:
    engine = opened(FedPAC(), [0, 1, 1], TWO)
    assert open_job(engine, 0).work.extras == {}
    engine.lose(0, at=1.0)
    engine.lose(1, at=1.0)
    engine.advance()
    assert open_job(engine, 0).work.extras == {}  # nobody was heard: still the first
    engine.arrive(0, [4, 1, 0], at=2.0, extras=FIRST)
    engine.lose(1, at=3.0)
    engine.advance()
    assert open_job(engine, 1).work.extras["prototypes"].tolist() == [[2], [6]]


def test_means_of_many_clients_keep_their_size_in_half_precision() -> None:
    """200 clients with 10 examples a class: sums of 600 and 2,000, to which bfloat16 cannot add 3 or 10."""
    clients = dict.fromkeys(range(200), 20)
    world = World(model=torch.zeros(3, dtype=torch.bfloat16), layout=layout_of(PARAMS), clients=clients)
    engine = start(ScriptedEngine(FedPAC(combine=False), world))
    told = {name: x.bfloat16() for name, x in extras(h=(0, 0), v=1, means=(0.3, 3), counts=(10, 10)).items()}
    for client in clients:
        engine.arrive(client, torch.zeros(3, dtype=torch.bfloat16), at=1.0, extras=told)
    engine.advance()
    assert torch.equal(open_job(engine, 0).work.extras["prototypes"], torch.tensor([[0.3], [3]], dtype=torch.bfloat16))


def test_without_alignment_no_prototypes_travel() -> None:
    engine = after_one_round(FedPAC(lam=0.0))
    engine.advance()
    assert open_job(engine, 0).work.extras == {}


def test_a_class_without_examples_has_no_prototype_and_clients_get_their_last_mean() -> None:
    engine = after_one_round()
    engine.advance()
    engine.arrive(0, [0, 0, 0], at=3.0, extras=extras(h=(0, 0), v=1, means=(7, 0), counts=(10, 0)))
    engine.lose(1, at=4.0)
    engine.advance()
    # class 1 was brought by nobody this time. Client 1 had it in the first round, with mean 1; client 0 did not have it
    # when last heard.
    assert open_job(engine, 1).work.extras["prototypes"].tolist() == [[7], [1]]
    assert open_job(engine, 1).work.extras["known"].tolist() == [1, 1]
    assert open_job(engine, 0).work.extras["known"].tolist() == [1, 0]
    engine.join(2, at=5.0)
    engine.arrive(0, [0, 0, 0], at=6.0, extras=extras(h=(0, 0), v=1, means=(7, 0), counts=(10, 0)))
    engine.lose(1, at=6.0)
    engine.advance()
    assert open_job(engine, 2).work.extras["known"].tolist() == [1, 0]  # never heard: nothing of its own


def test_no_client_counts_for_more_examples_than_it_trained_on() -> None:
    engine = opened(FedPAC(), [0, 1, 1], {0: 10, 1: 10})
    engine.arrive(0, [0, 0, 0], at=1.0, extras=extras(h=(0, 0), v=1, means=(1, 1), counts=(5, 5)))
    engine.arrive(1, [0, 0, 0], at=2.0, extras=extras(h=(0, 0), v=1, means=(100, 50), counts=(3e9, 1e9)))
    # 4e9 examples are 10: counts (7.5, 2.5). c_0 = (5 * 1 + 7.5 * 100) / 12.5 = 60.4, c_1 = (5 * 1 + 2.5 * 50) / 7.5 =
    # 52/3
    torch.testing.assert_close(engine.state.prototypes, vector(60.4, 52 / 3).unsqueeze(-1), rtol=1e-14, atol=0)
    assert engine.state.counts[1].tolist() == [7.5, 2.5]


def test_a_newcomer_starts_from_the_mean_head() -> None:
    engine = after_one_round()
    engine.join(2, at=2.0, num_examples=5)
    engine.advance()
    assert open_job(engine, 2).base is engine.model


def test_a_lost_client_keeps_its_head_and_does_not_weigh() -> None:
    engine = after_one_round()
    engine.advance()
    engine.lose(1, at=3.0)
    assert model_after(engine, 0, [3, 2, 2], at=4.0, extras=FIRST) == [3, 2, 2]
    engine.advance()
    # its head of the first round
    torch.testing.assert_close(open_job(engine, 1).base, vector(3, 0.25, 0.75), rtol=1e-14, atol=0)
    assert open_job(engine, 0).base.tolist() == [3, 2, 2]  # alone it has nobody to combine with


def test_head_and_means_of_a_client_that_stays_away_are_given_up_after_evict_after_seconds() -> None:
    engine = after_one_round(FedPAC(evict_after=2.0))
    engine.advance()
    engine.lose(1, at=3.0, reachable=False)
    engine.arrive(0, [3, 2, 2], at=4.0, extras=FIRST)
    engine.advance()
    assert 1 in engine.state.heads
    engine.back(1, at=5.0)
    assert [list(kept) for kept in (engine.state.heads, engine.state.means, engine.state.counts)] == [[0], [0], [0]]
    engine.lose(0, at=6.0)
    engine.advance()
    assert open_job(engine, 1).base is engine.model  # as a newcomer: the mean head
    assert open_job(engine, 0).base.tolist() == [3, 2, 2]


def test_a_round_without_reports_keeps_everything() -> None:
    engine = after_one_round()
    engine.advance()
    before = open_job(engine, 0)
    engine.lose(0, at=3.0)
    engine.lose(1, at=4.0)
    engine.advance()
    assert engine.ledger.version == 1
    assert torch.equal(open_job(engine, 0).base, before.base)
    assert torch.equal(open_job(engine, 0).work.extras["prototypes"], before.work.extras["prototypes"])


def test_a_late_answer_is_rejected_and_changes_no_head() -> None:
    engine = opened(FedPAC(deadline=5.0), [0, 1, 1], TWO)
    engine.arrive(0, [4, 1, 0], at=1.0, extras=FIRST)
    engine.advance(5.0)
    engine.arrive(1, [0, 9, 9], at=6.0, extras=SECOND)
    assert any(isinstance(action, Reject) for entry in engine.log for action in entry.actions)
    assert engine.strategy.model_for(engine.state, 1) is engine.model
    assert list(engine.state.means) == [0]


def test_statistics_are_averaged_and_the_head_alone_is_personal() -> None:
    engine = opened(FedPAC(), [0, 1, 1, 1, 3], TWO, statistics=True)
    engine.arrive(0, [4, 1, 0, 2, 7], at=1.0, extras=FIRST)
    engine.arrive(1, [0, 0, 1, 6, 4], at=2.0, extras=SECOND)
    # buffer (10 * 2 + 30 * 6) / 40 = 5; counter max(3, 7, 4)
    assert engine.model.tolist() == [1, 0.25, 0.75, 5, 7]
    torch.testing.assert_close(
        engine.strategy.model_for(engine.state, 0), vector(1, 0.75, 0.25, 5, 7), rtol=1e-14, atol=0
    )


def test_without_combination_every_client_keeps_the_head_it_trained() -> None:
    engine = after_one_round(FedPAC(combine=False))
    engine.advance()
    assert open_job(engine, 0).base.tolist() == [1, 1, 0]
    assert open_job(engine, 1).base.tolist() == [1, 0, 1]


def test_clients_alike_in_everything_are_fedavg() -> None:
    """h and V all equal: V + D_i = V 1, so a is 1/m for everyone, every head is the mean head, and what is sent is
    FedAvg's model.
    """
    clients = {0: 10, 1: 10, 2: 10, 3: 10}
    ours, theirs = (opened(strategy, [0, 0, 0], clients) for strategy in (FedPAC(lam=0.0), FedAvg()))
    for turn in range(3):
        for client in clients:
            delta = vector(client, client * turn, 8 - client)
            for engine in (ours, theirs):
                engine.arrive(
                    client,
                    open_job(engine, client).base + delta,
                    at=1.0 + turn + client / 8,
                    extras=extras(h=(0.5, 0.5), v=0.25),
                )
        torch.testing.assert_close(ours.model, theirs.model, rtol=1e-13, atol=1e-13)
        for engine in (ours, theirs):
            engine.advance()
        for client in clients:
            torch.testing.assert_close(
                open_job(ours, client).base, open_job(theirs, client).base, rtol=1e-13, atol=1e-13
            )


def test_work_is_the_head_then_the_body() -> None:
    engine = opened(FedPAC(work=LocalWork(epochs=5)), [0, 1, 1], TWO)
    work = open_job(engine, 0).work
    assert work.rule is not None
    assert work.rule.phases(work) == (
        Phase(epochs=1, lr=0.1, slices=("head.weight",)),
        Phase(epochs=5, lr=0.01, slices=("body.weight",)),
    )
    assert work.rule.uploads(engine.world.layout) == {"h": 2, "v": 1, "means": 2, "counts": 2}
    rate = open_job(opened(FedPAC(lr=None, work=LocalWork(lr=0.5)), [0, 1, 1], TWO), 0).work.lr
    assert rate == 0.5  # lr=None leaves it to the work, and that to the training section


def test_clients_that_have_no_head_yet_share_one_tensor() -> None:
    engine = opened(FedPAC(), [0, 1, 1], TWO)
    assert all(job.base is engine.world.model for job in engine.ledger.open_jobs.values())
    dispatched = actions(engine, Dispatch)
    assert dispatched[0].work.rule == dispatched[1].work.rule


def test_a_helper_beyond_a_better_one_gets_nothing() -> None:
    """Heads on a line, h = 0, 1, 2 and V = 1/2, 1/2, 1. For client 0: V + D = [[1/2, 0, 0], [0, 3/2, 2], [0, 2, 5]].

    Without a >= 0, (Q a)_1 = (Q a)_2 would need 3/2 a_1 + 2 a_2 = 2 a_1 + 5 a_2, a_2 = -a_1 / 6. So a_2 = 0, and a_0 :
    a_1 = 2 : 2/3. There (Q a)_0 = (Q a)_1 = 3/8, and (Q a)_2 = 2 * 1/4 = 1/2 is more: no weight would be better moved
    to client 2.
    """
    first = mixture_weights(np.array([[0.0], [1.0], [2.0]]), np.array([0.5, 0.5, 1.0]))[0]
    np.testing.assert_allclose(first, [0.75, 0.25, 0], atol=1e-15)


def test_what_all_clients_have_in_common_does_not_matter() -> None:
    """The h of the test above, in units of 2^-12, a million away: squares of 2^40 would leave nothing of differences
    of 2^-24.
    """
    h, v = np.array([[0.0], [1.0], [2.0]]) * 2**-12, np.array([0.5, 0.5, 1.0]) * 2**-24
    np.testing.assert_allclose(mixture_weights(h + 2**20, v)[0], [0.75, 0.25, 0], atol=1e-12)


def test_weights_under_a_thousandth_are_dropped() -> None:
    # d = 1999: a ~ (1, 1 / 2000), a_1 = 1 / 2001 < 1 / 1000
    assert [
        row.tolist() for row in mixture_weights(np.array([[0.0], [1999.0**0.5]]), np.ones(2)) if row is not None
    ] == [[1, 0], [0, 1]]
    # d = 400: a ~ (1, 1 / 401), a_1 = 1 / 402 stays
    first = mixture_weights(np.array([[0.0], [20.0]]), np.ones(2))[0]
    np.testing.assert_allclose(first, [401 / 402, 1 / 402], rtol=1e-12)
    np.testing.assert_allclose(
        drop_small_weights(np.array([0.6, 0.0005, 0.3995])), [0.6 / 0.9995, 0, 0.3995 / 0.9995], rtol=1e-14
    )


def test_more_than_a_thousand_equals_leave_no_weight() -> None:
    assert drop_small_weights(np.full(1001, 1 / 1001)) is None


def test_a_matrix_that_is_not_positive_semidefinite_keeps_its_eigenvalues_from_a_hundredth_up() -> None:
    # diag(-1, 4) becomes diag(0, 4): all weight on the first, which costs nothing
    np.testing.assert_allclose(simplex_minimum(np.diag([-1.0, 4.0])), [1, 0], atol=1e-12)
    # diag(-1, 1/200, 4, 1) becomes diag(0, 0, 4, 1)
    a = simplex_minimum(np.diag([-1.0, 0.005, 4.0, 1.0]))
    assert a is not None
    np.testing.assert_allclose(a[2:], 0, atol=1e-12)
    # diag(1/200, 4) is fine as it is: a ~ (200, 1/4)
    np.testing.assert_allclose(simplex_minimum(np.diag([0.005, 4.0])), [800 / 801, 1 / 801], rtol=1e-10)


def test_weights_are_the_same_piece_by_piece_and_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    h, v = rng.normal(size=(5, 11)), rng.uniform(0, 2, size=5)
    v[3] = -1.0  # not positive semidefinite: the others are solved as ever
    together = mixture_weights(h, v)
    monkeypatch.setattr(simplex, "BLOCK", 4)
    monkeypatch.setattr(simplex, "MATRIX_ENTRIES", 1)
    for one, other in zip(together, mixture_weights(list(h), v), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize(
    "matrix", [np.zeros((2, 2)), np.diag([-1.0, 0.005]), np.diag([np.nan, 1.0]), np.diag([np.inf, 1.0])]
)
def test_without_a_solution_there_are_no_weights(matrix: np.ndarray[Any, Any]) -> None:
    # nothing to choose by; nothing left of it; no numbers at all
    assert simplex_minimum(matrix) is None


def test_a_client_without_a_solution_keeps_its_own_head() -> None:
    engine = opened(FedPAC(), [0, 1, 1], TWO)
    engine.arrive(0, [4, 1, 0], at=1.0, extras=extras(h=(1, 1), v=0))
    engine.arrive(1, [0, 0, 1], at=2.0, extras=extras(h=(1, 1), v=0))
    assert notes(engine)[-1].values["unsolved"] == 2
    engine.advance()
    assert open_job(engine, 0).base.tolist() == [1, 1, 0]
    assert open_job(engine, 1).base.tolist() == [1, 0, 1]


def test_the_bias_term_is_the_one_printed() -> None:
    """D_i[j, l] = sum_y <h_i,y - h_j,y, h_i,y - h_l,y>, term by term."""
    clients, classes, width = 4, 3, 2
    rng = np.random.default_rng(0)
    h, v = rng.normal(size=(clients, classes, width)), rng.uniform(0.1, 1, size=clients)
    rows = mixture_weights(h.reshape(clients, -1), v)
    for i in range(clients):
        D = np.zeros((clients, clients))
        for j, k, y in product(range(clients), range(clients), range(classes)):
            D[j, k] += (h[i, y] - h[j, y]) @ (h[i, y] - h[k, y])
        a = simplex_minimum(np.diag(v) + D)
        assert a is not None
        np.testing.assert_allclose(rows[i], drop_small_weights(a), rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_minimum_is_that_of_a_general_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(7, 4))
    Q = G @ G.T + np.diag(rng.uniform(0.01, 1, size=7))
    a = simplex_minimum(Q)
    assert a is not None
    found = minimize(
        lambda x: x @ Q @ x,
        np.full(7, 1 / 7),
        jac=lambda x: 2 * Q @ x,
        bounds=[(0, 1)] * 7,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert a.min() >= 0
    assert a.sum() == pytest.approx(1, abs=1e-14)
    assert a @ Q @ a <= found.fun + 1e-12
    np.testing.assert_allclose(a, found.x, atol=1e-5)


def test_a_hundred_clients_with_few_examples_apart_are_all_solved() -> None:
    rng = np.random.default_rng(1)
    rows = mixture_weights(rng.normal(size=(100, 640)) * 0.1, rng.uniform(0, 0.1, size=100))
    assert all(row is not None and row.sum() == pytest.approx(1) for row in rows)


LAYOUT = layout_of([("body.weight", (2, 1), "param"), ("head.weight", (3, 2), "param")])
RULE = HeadThenBody(Halves.of(LAYOUT, None), lam=0.5, head_epochs=1, head_lr=0.1)


def job(features: Any = None, **sent: Tensor) -> LocalJob:
    base = torch.zeros(8, dtype=torch.float64)
    return LocalJob(base=base, start=base, layout=LAYOUT, lr=0.1, extras=sent, memory={}, features=features)


def test_statistics_before_and_after_training() -> None:
    before, after = torch.tensor([[1.0, 0], [3, 0], [0, 2]]).double(), torch.tensor([[1.0, 1], [1, 3], [5, 5]]).double()
    y = torch.tensor([0, 0, 1])
    local = torch.ones(8, dtype=torch.float64)
    seen = job(lambda model: (after if model is local else before, y))
    uploaded, memory = RULE.end(seen, local, RULE.begin(seen))
    # p = (2/3, 1/3, 0), mu_0 = (2, 0), mu_1 = (0, 2): h_0 = (4/3, 0), h_1 = (0, 2/3), nothing for class 2
    torch.testing.assert_close(uploaded["h"], vector(4 / 3, 0, 0, 2 / 3, 0, 0))
    # 2/3 * (1 + 9) / 2 + 1/3 * 4 = 14/3; (2/3)^2 * 4 + (1/3)^2 * 4 = 20/9; (14/3 - 20/9) / 3 = 22/27
    torch.testing.assert_close(uploaded["v"], vector(22 / 27))
    assert uploaded["means"].tolist() == [1, 2, 5, 5, 0, 0]  # of the trained model
    assert uploaded["counts"].tolist() == [2, 1, 0]
    assert memory == {}
    assert {name: extra.numel() for name, extra in uploaded.items()} == RULE.uploads(LAYOUT)


@pytest.mark.parametrize("examples", [1, 3, 20])
def test_features_that_do_not_vary_have_no_variance_below_zero(examples: int) -> None:
    """One class, one input over and over: V = 0. A difference of two sums of squares has either sign in float32."""
    for seed in range(40):
        f = 3 * torch.randn(1, 2, generator=torch.Generator().manual_seed(seed)).expand(examples, 2)
        v = RULE.begin(job(lambda model, f=f: (f, torch.ones(examples, dtype=torch.int64))))["v"]
        assert 0 <= v.item() <= 1e-12


def test_a_stack_of_clients_is_each_client() -> None:
    f = torch.arange(24, dtype=torch.float64).reshape(2, 6, 2).sin()
    y = torch.tensor([[0, 0, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0]])
    base = torch.zeros(2, 8, dtype=torch.float64)
    together = LocalJob(
        base=base, start=base, layout=LAYOUT, lr=0.1, extras={}, memory={}, features=lambda model: (f, y)
    )
    stacked, _ = RULE.end(together, base, RULE.begin(together))
    for k in range(2):
        alone = job(lambda model, k=k: (f[k], y[k]))
        uploaded, _ = RULE.end(alone, base[k], RULE.begin(alone))
        for name, extra in uploaded.items():
            torch.testing.assert_close(stacked[name][k], extra, rtol=1e-14, atol=1e-15)


def test_the_loss_pulls_features_to_their_prototypes() -> None:
    features = torch.tensor([[1.0, 2], [3, 4]], dtype=torch.float64, requires_grad=True)
    outputs, y = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 1])
    aligned = job(prototypes=torch.zeros(3, 2, dtype=torch.float64), known=vector(1, 0, 0))
    loss = RULE.loss(aligned, outputs, features, y)
    # cross entropy ln 3; of four entries two have a prototype: (1^2 + 2^2) / 4 = 5/4, times lambda = 1/2
    assert loss.item() == pytest.approx(log(3) + 5 / 8, abs=1e-15)
    (gradient,) = torch.autograd.grad(loss, features)
    assert gradient.tolist() == [[0.25, 0.5], [0, 0]]  # lambda * 2 (f - c) / 4; a class without prototype is not pulled


def test_in_the_first_round_the_loss_is_cross_entropy() -> None:
    loss = RULE.loss(
        job(), torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64), torch.tensor([0, 1])
    )
    assert loss.item() == pytest.approx(log(3), abs=1e-15)


def one_feature() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)).double()


ONE = ClientData.separate([(torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([0]))], num_classes=2)


def test_a_job_trains_the_head_and_then_the_body() -> None:
    rule = HeadThenBody(Halves.of(Layout.of(one_feature()), None), lam=0.5, head_epochs=1, head_lr=0.1)
    told = {"prototypes": torch.tensor([[3.0], [0]]).double(), "known": vector(1, 0)}
    work = LocalWork(rule=rule, lr=0.01, extras=told)
    base = vector(1, 0, 0)
    trainer, given = Trainer(one_feature(), ONE, Training(steps=1)), Job(7, 0, 0, base, 1, work, 1, {}, seed=1)
    result = trainer(given)
    # x = f = 1, label 0. Head: p = (1/2, 1/2), gradient (p - (1, 0)) f = (-1/2, 1/2), phi = (1/20, -1/20); theta stays.
    # Body: p_1 = 1 / (1 + e^(1/10)), dCE/df = (p_0 - 1) / 20 - p_1 / 20 = -p_1 / 10; d MSE/df = 2 (1 - 3) = -4, times
    # 1/2
    theta = 1 + 0.01 * (2 + 0.1 / (1 + exp(0.1)))
    torch.testing.assert_close(result.local, vector(theta, 0.05, -0.05), rtol=1e-14, atol=0)
    assert result.steps == trainer.count_steps(0, work, 1) == 2
    assert result.extras["h"].tolist() == [1, 0]  # p = (1, 0), f = 1 before training
    assert result.extras["v"].tolist() == [0]  # one example does not vary
    torch.testing.assert_close(result.extras["means"], vector(theta, 0), rtol=1e-14, atol=0)
    gate = Gate(Layout.of(one_feature()), torch.float64)
    assert not isinstance(gate.inspect([result], {7: given})[0], str)


class Classifier(nn.Module):
    """A head of two layers, registered before the body."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        self.body = nn.Linear(5, 4)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x) * self.scale)
        return out


def test_the_head_is_the_last_module_with_parameters_unless_named() -> None:
    layout = Layout.of(Classifier())
    assert Halves.of(layout, None) == Halves(
        "body", ("body.weight", "body.bias"), tuple(s.name for s in list(layout.of_kind("param"))[:4]), 4, 5
    )
    named = Halves.of(layout, "classifier")
    assert (named.body, named.classes, named.width) == (("body.weight", "body.bias"), 2, 4)
    model = flatten(Classifier())
    head = named.head_of(layout, model)
    assert len(head) == 4 * 3 + 3 + 3 * 2 + 2
    changed = named.with_head(layout, model, head + 1)
    assert torch.equal(named.head_of(layout, changed), head + 1)
    assert torch.equal(changed[len(head) :], model[len(head) :])


def test_the_features_are_the_inputs_of_the_named_head() -> None:
    x, y = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
    module = Classifier()
    rule = HeadThenBody(Halves.of(Layout.of(module), "classifier"), lam=1.0, head_epochs=1, head_lr=0.1)
    told = {"prototypes": torch.zeros(2, 4), "known": torch.ones(2)}
    result = Trainer(module, ClientData.separate([(x, y)]), Training(steps=2, batch=12))(
        Job(0, 0, 0, flatten(module), 0, LocalWork(rule=rule, extras=told), 12, {}, 0)
    )
    features = module.body(x).detach()
    torch.testing.assert_close(
        result.extras["h"], torch.stack([features[::2].sum(0), features[1::2].sum(0)]).flatten() / 12
    )


class Flattens(nn.Module):
    """A head that is given pictures and makes vectors of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 2, 3)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


@pytest.mark.parametrize("convolution", [True, False])
def test_a_head_may_be_a_convolution_or_flatten_what_enters_it(convolution: bool) -> None:
    """It does what a linear layer after a Flatten does with the same numbers, in a round with prototypes too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        flat = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)).double()
        module = (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 2), nn.Flatten()) if convolution else Flattens()
        ).double()
        data = ClientData.separate([(torch.randn(9, 1, 4, 4).double(), torch.arange(9) % 3)])
        told = {"prototypes": torch.randn(3, 8).double(), "known": vector(1, 0, 1)}
    base, results = flatten(flat), []  # weights of a convolution lie in memory as the flattened picture does
    for model, name in ((module, None if convolution else "head"), (flat, None)):
        rule = HeadThenBody(Halves.of(Layout.of(model), name), lam=0.5, head_epochs=1, head_lr=0.1)
        assert (rule.split.classes, rule.split.width) == (3, 8)
        trainer = Trainer(model, data, Training(steps=2, batch=9))
        results.append(trainer(Job(0, 0, 0, base, 0, LocalWork(rule=rule, extras=told), 9, {}, 0)))
    torch.testing.assert_close(results[0].local, results[1].local)
    for name, extra in results[1].extras.items():
        torch.testing.assert_close(results[0].extras[name], extra)


def test_a_model_without_a_body_is_refused() -> None:
    layer, flat = nn.Linear(3, 2), nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    for module in (layer, flat):
        with pytest.raises(ConfigError, match=messages.NO_BODY):
            FedPAC().init(World(model=flatten(module), layout=Layout.of(module), clients={}))
    pairs = [(torch.randn(6, 3), torch.arange(6) % 2)]
    with pytest.raises(ConfigError, match=messages.NO_BODY):
        offbeat.simulate(flat, pairs, strategy="fedpac", until="10updates")


def test_a_head_that_does_not_exist_or_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=messages.UNKNOWN_HEAD):
        Halves.of(Layout.of(Classifier()), "bodi")
    with pytest.raises(ConfigError, match=messages.NO_MATRIX):
        Halves.of(layout_of([("a.weight", (2, 2), "param"), ("norm.weight", (2,), "param")]), None)
    for features, labels, classes, message in messages.UNUSABLE_FEATURES:
        y = torch.zeros(labels, dtype=torch.int64 if classes else torch.float32)
        with pytest.raises(ConfigError, match=message):
            RULE.begin(job(lambda model, shape=features, y=y: (torch.zeros(shape), y)))
    with pytest.raises(ConfigError, match=messages.WRONG_OUTPUTS):
        RULE.loss(job(), torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match=messages.NO_FEATURES):
        RULE.begin(job())


def test_it_learns_from_clients_of_one_class_each() -> None:
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 4, generator=g) * 3
    pairs = [(centres[k] + torch.randn(20, 4, generator=g) * 0.3, torch.full((20,), k)) for k in range(3)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    done = offbeat.simulate(module, pairs, strategy=offbeat.FedPAC(lr=0.05), delays=10.0, until="120updates")
    assert done.metrics["acc"] > 0.9
