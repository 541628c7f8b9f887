"""OrthoFL, worked by hand: spec 8.1, every ablation, who starts anew, what is kept and shared."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from offbeat.core.parts.staleness import Polynomial
from offbeat.core.protocol import ClientReady, Commit, Dispatch, LocalWork, Note, Reject, UpdateArrived, World
from offbeat.core.snapshot import pack, pack_state
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.orthofl import OrthoFL
from offbeat.core.vector import Layout
from offbeat.engine.checkpoint import Checkpoints
from offbeat.testing import (
    PATTERNS,
    LogEntry,
    ScriptedEngine,
    hand_world,
    identical,
    layout_of,
    play,
    random_script,
    tiny_world,
)
from strategies.scripted_runs import arrive_all, model_after, open_job, started

A, B, C = 0, 1, 2
TWO = {A: 10, B: 10}
LAYERS: Layout = layout_of([("l1", (2,), "param"), ("l2", (1,), "param")])
QUARTERS = {"beta": 0.5, "a": 1.0}  # beta_t = .5, .25, ...: short numbers


def on_layers(strategy: OrthoFL) -> ScriptedEngine:
    """Spec 8.1: clients A and B, l1 = (0, 0), l2 = (1)."""
    world = World(model=torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), layout=LAYERS, clients=TWO)
    engine = ScriptedEngine(strategy, world)
    engine.start()
    return engine


def sent(engine: ScriptedEngine, client: int) -> Tensor:
    return open_job(engine, client).base


def reply_after(engine: ScriptedEngine, client: int, local: list[float], at: float) -> list[float]:
    """Return what a client is sent after its update has arrived."""
    engine.arrive(client, local, at=at)
    return sent(engine, client).tolist()


def noted(engine: ScriptedEngine) -> dict[str, float]:
    """The last Note."""
    return [dict(action.values) for entry in engine.log for action in entry.actions if isinstance(action, Note)][-1]


def close(values: list[float], tolerance: float = 1e-9) -> object:
    return pytest.approx(values, abs=tolerance)


def test_the_shift_loses_its_component_along_the_clients_update() -> None:
    engine = on_layers(OrthoFL(beta=0.6, a=0.5))

    engine.arrive(A, [1, 0, 2], at=1.0)
    # t = 1, s = 1 - 0: nobody else came, D = 0. W = .4 (0, 0, 1) + .6 (1, 0, 2)
    assert sent(engine, A).tolist() == [1, 0, 2]
    assert engine.model.tolist() == close([0.6, 0, 1.6])
    assert noted(engine) == {"s": 1, "beta_t": 0.6}

    engine.arrive(B, [1, 1, 0], at=2.0)
    # t = 2, s = 2 - 0, beta_t = .6 / sqrt 2 = .424264069; D = W1 - W0 = (.6, 0), (.6); d = (1, 1), (-1)
    # l1: .6 / 2 = .3 of d goes: (.6 - .3, 0 - .3); l2: -.6 / 1 of d goes: .6 - .6 = 0
    assert sent(engine, B).tolist() == close([1.3, 0.7, 0])
    # W = (.6 + .424264069 (1 - .6), .424264069, 1.6 (1 - .424264069))
    assert engine.model.tolist() == close([0.769705627, 0.424264069, 0.921177490])
    # share: (.6 - .6) / (2 + 1) = 0; removed: the norm of .3 (1, 1), -.6 (-1) is sqrt(.18 + .36)
    assert noted(engine) == pytest.approx({"s": 2, "beta_t": 0.6 / 2**0.5, "share": 0.0, "removed": 0.54**0.5})

    engine.arrive(A, [2, 0.5, 2.5], at=3.0)
    # t = 3, s = 3 - 1; D = W2 - W1 = (.169705627, .424264069), (-.678822510); d = (2, .5, 2.5) - (1, 0, 2) = (1, .5),
    # (.5) l1: <D, d> = .381837661, / 1.25 = .305470129: (.169705627 - .305470129, .424264069 - .152735065) =
    # (-.135764502, .271529004)
    assert sent(engine, A).tolist() == close([1.864235498, 0.771529004, 2.5])
    assert engine.model.tolist() == close([1.291675324, 0.456396103, 1.591015152])


def test_with_the_chain_as_reference_and_a_first_weight_of_one_it_is_the_public_code() -> None:
    engine = on_layers(OrthoFL(beta=0.6, a=0.5, reference="chain", first_alpha=1.0))
    assert reply_after(engine, A, [1, 0, 2], at=1.0) == engine.model.tolist() == [1, 0, 2]
    engine.arrive(B, [1, 1, 0], at=2.0)
    # the chain is (1, 0), (2), what A was sent; D = chain - C_B = (1, 0), (1); d = (1, 1), (-1); D_perp = (.5, -.5),
    # (0)
    assert sent(engine, B).tolist() == close([1.5, 0.5, 0])
    assert engine.model.tolist() == close([1, 0.424264069, 1.151471863])  # 2 (1 - .424264069)
    engine.arrive(A, [2, 0.5, 2.5], at=3.0)
    # D = (1.5, .5, 0) - (1, 0, 2) = (.5, .5), (-2); d = (1, .5), (.5): .75 / 1.25 = .6 of d goes from l1
    assert sent(engine, A).tolist() == close([1.9, 0.7, 2.5])
    assert engine.model.tolist() == close([1.424264069, 0.456396103, 1.723603897])


def test_the_first_weight_counts_for_the_first_update_only() -> None:
    engine = on_layers(OrthoFL(beta=0.6, a=0.5, first_alpha=1.0))
    arrive_all(engine, (A, [1, 0, 2], 1.0), (B, [1, 1, 0], 2.0), (A, [2, 0.5, 2.5], 3.0))
    # W1 = (1, 0, 2), W2 = (1, .424264069, 1.151471863): D = (0, .424264069), (-.848528137); d = (1, .5), (.5)
    # l1: .212132034 / 1.25 = .169705627 of d goes: (-.169705627, .339411255). From the chain it would be (-.1, .2), as
    # above
    assert sent(engine, A).tolist() == close([1.830294373, 0.839411255, 2.5])
    assert [note["beta_t"] for note in notes(engine)] == pytest.approx([1.0, 0.6 / 2**0.5, 0.6 / 2**0.5])


def notes(engine: ScriptedEngine) -> list[Mapping[str, float]]:
    return [action.values for entry in engine.log for action in entry.actions if isinstance(action, Note)]


def test_without_calibration_clients_are_sent_the_moving_average() -> None:
    engine = started(OrthoFL(calibrate=False, **QUARTERS), [0, 0])
    engine.arrive(A, [4, 0], at=1.0)
    assert sent(engine, A) is engine.model
    engine.arrive(B, [2, 8], at=2.0)
    assert sent(engine, B) is engine.model
    assert engine.model.tolist() == [2, 2]  # s = 2: .75 (2, 0) + .25 (2, 8)
    assert len(engine.state.snapshots) == len(engine.state.replies) == 0  # nothing is kept


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "limits", [{}, {"concurrency": 2}, {"concurrency": 1, "max_staleness": 1}, {"max_staleness": 0}]
)
def test_without_calibration_it_is_fedasync_bit_for_bit(pattern: str, limits: dict[str, int]) -> None:
    script, world = random_script(pattern, seed=7, length=60), tiny_world(clients=4, buffers=True)
    orthofl = play(OrthoFL(beta=0.7, a=0.3, calibrate=False, **limits), script, world).log
    fedasync = play(FedAsync(alpha=0.7, staleness=Polynomial(a=0.3), rho=0.0, **limits), script, world).log
    assert identical([without_notes(entry) for entry in orthofl], fedasync)
    assert sum(isinstance(action, Commit) for entry in fedasync for action in entry.actions) > 5


def without_notes(entry: LogEntry) -> LogEntry:
    return LogEntry(
        entry.event, tuple(action for action in entry.actions if not isinstance(action, Note)), entry.version
    )


def test_without_the_moving_average_the_model_is_the_last_calibrated_clients() -> None:
    engine = on_layers(OrthoFL(moving_average=False))
    # W is then the last weights sent to anybody, so the numbers are those of the chain
    for at, client, local, calibrated in [(1.0, A, [1, 0, 2], [1, 0, 2]), (2.0, B, [1, 1, 0], [1.5, 0.5, 0])]:
        assert model_after(engine, client, local, at=at) == close(calibrated)
        assert sent(engine, client) is engine.model
    assert model_after(engine, A, [2, 0.5, 2.5], at=3.0) == close([1.9, 0.7, 2.5])
    assert "beta_t" not in noted(engine)


def test_with_neither_the_last_client_is_the_model() -> None:
    engine = started(OrthoFL(calibrate=False, moving_average=False), [0])
    assert arrive_all(engine, (A, [4], 1.0), (B, [6], 2.0)) == [6]
    assert sent(engine, B) is engine.model


def test_pairwise_leaves_of_an_update_what_no_other_client_did() -> None:
    engine = started(OrthoFL(projection="pairwise", **QUARTERS), [0, 0], {A: 10, B: 10, C: 10})
    assert reply_after(engine, A, [2, 0], at=1.0) == [2, 0]  # nobody else yet: G = (0, 0) + (2, 0)
    assert engine.model.tolist() == [1, 0]
    engine.arrive(B, [3, 4], at=2.0)
    # d = (3, 4), q = (1, 0) from A's (2, 0): d~ = (0, 4), G = (2, 4); the moving average takes all of it: (1, 0) + .25
    # (2, 4)
    assert sent(engine, B).tolist() == [2, 4]
    assert engine.model.tolist() == [1.5, 1]
    assert noted(engine)["kept"] == pytest.approx(4 / 5)
    engine.arrive(A, [3, 1], at=3.0)
    # d = (3, 1) - (2, 0) = (1, 1), q = (.6, .8) from B's (3, 4), not from what was left of it: d~ = (1, 1) - 1.4 (.6,
    # .8) = (.16, -.12)
    assert sent(engine, A).tolist() == close([2.16, 3.88])
    assert engine.model.tolist() == [1.875, 1]  # s = 2: (1.5, 1) + .25 (1.5, 0)
    engine.arrive(C, [5, 7], at=4.0)
    # A's (1, 1) and B's (3, 4) span the plane: nothing is left, C is sent G as it is
    assert sent(engine, C).tolist() == close([2.16, 3.88])
    assert noted(engine)["kept"] == pytest.approx(0, abs=1e-9)


def test_pairwise_works_layer_by_layer() -> None:
    engine = on_layers(OrthoFL(projection="pairwise"))
    engine.arrive(A, [2, 0, 1], at=1.0)  # d = (2, 0), (0): it did not touch l2
    engine.arrive(B, [1, 1, 3], at=2.0)  # d = (1, 1), (2)
    # l1: (1, 1) without (1, 0); l2: nothing to leave out. G = (2, 0, 1) + (0, 1, 2)
    assert sent(engine, B).tolist() == close([2, 1, 3])


def test_pairwise_without_the_moving_average_evaluates_the_chain() -> None:
    engine = started(OrthoFL(projection="pairwise", moving_average=False), [0, 0])
    assert arrive_all(engine, (A, [2, 0], 1.0), (B, [3, 4], 2.0)) == [2, 4]
    assert sent(engine, B) is engine.model


def test_pairwise_remembers_what_a_lost_client_did_last() -> None:
    engine = started(OrthoFL(projection="pairwise"), [0, 0])
    engine.arrive(A, [2, 0], at=1.0)
    engine.lose(A, at=2.0, reachable=False)
    assert reply_after(engine, B, [3, 4], at=3.0) == [2, 4]  # (0, 4) of its (3, 4), after (2, 0)


def test_pairwise_forgets_what_a_lost_client_did_after_evict_after_seconds() -> None:
    engine = started(OrthoFL(projection="pairwise", evict_after=1.0), [0, 0])
    engine.arrive(A, [2, 0], at=1.0)
    engine.lose(A, at=2.0, reachable=False)
    assert reply_after(engine, B, [3, 4], at=3.0) == [5, 4]  # all of its (3, 4), after (2, 0)


def test_a_client_alone_is_sent_exactly_what_it_returned() -> None:
    # the shift must not hold the client's own update: with it, D would be beta_t (Y - W), not 0
    engine = started(OrthoFL(), [1, 2, 3], {A: 10})
    for n in range(1, 5):
        local = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        engine.arrive(A, local, at=float(n))
        assert sent(engine, A) is local  # the tensor itself: nothing was computed
        assert noted(engine)["s"] == 1


def test_a_client_that_did_not_move_takes_over_the_whole_shift() -> None:
    engine = started(OrthoFL(**QUARTERS), [0, 0])
    engine.arrive(A, [4, 2], at=1.0)
    assert reply_after(engine, B, [0, 0], at=2.0) == [2, 1]  # d = 0: D_perp = D = (2, 1)


def test_a_layer_of_one_element_receives_nothing_from_the_others_once_its_client_moved_it() -> None:
    engine = started(OrthoFL(**QUARTERS), [0])
    engine.arrive(A, [4], at=1.0)
    assert reply_after(engine, B, [1], at=2.0) == [1]


def test_a_slower_client_has_less_weight_and_a_larger_shift() -> None:
    engine = started(OrthoFL(**QUARTERS), [0, 0])
    for n in range(3):
        engine.arrive(A, [8, 0], at=1.0 + n)
    assert engine.model.tolist() == [7, 0]  # 0 -> 4 -> 6 -> 7: A comes round after round, always fresh
    assert reply_after(engine, B, [0, 8], at=9.0) == [7, 8]  # D = (7, 0) is orthogonal to d = (0, 8) already
    assert engine.model.tolist() == [6.125, 1]  # s = 4: beta_t = .125; 7 - 7 / 8, 8 / 8


def test_staleness_counts_from_the_last_communication_though_the_reply_waited_for_a_seat() -> None:
    # one seat, served in the order P, Q, P: P's reply is ready in round 1 and leaves in round 2
    engine, p, q = in_turns()
    engine.arrive(p, [4, 0], at=1.0)
    engine.advance()
    assert list(engine.ledger.open_tickets) == [q]
    assert list(engine.state.replies) == [p]
    assert engine.state.replies[p].tolist() == [4, 0]
    assert sent(engine, q) is engine.model  # never served before: it starts from W = (2, 0)
    engine.arrive(q, [2, 8], at=2.0)
    assert noted(engine)["s"] == 1
    assert engine.model.tolist() == [2, 4]
    engine.advance()
    ticket = open_job(engine, p)
    assert (ticket.base.tolist(), ticket.base_version) == ([4, 0], 2)
    assert p not in engine.state.replies
    engine.arrive(p, [8, 0], at=3.0)
    assert noted(engine)["s"] == 2  # 3 - 1; from the dispatch it would be 1
    assert engine.state.replies[p].tolist() == [8, 4]  # D = (2, 4) - (2, 0), orthogonal to d = (4, 0)
    assert engine.model.tolist() == [3.5, 3]  # .75 (2, 4) + .25 (8, 0)


def in_turns() -> tuple[ScriptedEngine, int, int]:
    """An engine with one seat, and a seed with which the draws are P, Q, P."""
    for seed in range(100):
        engines = [
            ScriptedEngine(OrthoFL(concurrency=1, **QUARTERS), hand_world([0, 0], TWO, seed=seed)) for _ in range(2)
        ]
        order = []
        for engine in engines:
            engine.start()
            engine.advance()
        for n in range(3):
            (client,) = engines[0].ledger.open_tickets
            order.append(client)
            engines[0].arrive(client, [0, 0], at=1.0 + n)
            engines[0].advance()
        if order[0] != order[1] and order[0] == order[2]:
            return engines[1], order[0], order[1]
    raise AssertionError("no seed draws P, Q, P")


@pytest.mark.parametrize("settings", [{}, {"reference": "chain"}, {"moving_average": False}])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_in_every_script_a_reply_differs_from_the_update_by_something_orthogonal_to_it(
    pattern: str, settings: dict[str, object]
) -> None:
    world = tiny_world(clients=4, buffers=True, in_the_middle=True)
    log = play(OrthoFL(**settings), random_script(pattern, seed=3, length=60), world).log
    calibrated = 0
    for entry, after in pairwise(log):
        event = entry.event
        replies = [action.model for action in after.actions if isinstance(action, Dispatch)]
        if not isinstance(event, UpdateArrived) or getattr(after.event, "client", None) != event.client or not replies:
            continue
        for s in world.layout.slices:
            reply, local, base = (v[s.start : s.stop] for v in (replies[0], event.local, event.base))
            if s.kind == "param":
                assert abs(torch.dot(reply - local, local - base)) < 1e-12
            elif s.kind == "buffer":
                assert torch.equal(reply, local)
        calibrated += not torch.equal(replies[0], event.local)
    assert calibrated > 3


def starts_anew(engine: ScriptedEngine, client: int) -> bool:
    """Sent W, tau = t - 1 = version, W^(tau+) = C = W: all one tensor."""
    same = sent(engine, client) is engine.model and engine.state.snapshots[client] is engine.model
    return same and engine.state.tau[client] == engine.state.version


def test_a_newcomer_is_sent_the_model_and_counts_from_then() -> None:
    engine = started(OrthoFL(**QUARTERS), [0, 0])
    engine.arrive(A, [4, 0], at=1.0)
    engine.join(C, at=2.0)
    assert starts_anew(engine, C)
    assert engine.state.tau[C] == 1
    engine.arrive(A, [4, 4], at=3.0)  # W: (2, 0) -> (3, 2)
    engine.arrive(C, [2, 4], at=4.0)
    assert noted(engine)["s"] == 2  # 3 - 1
    # D = (3, 2) - (2, 0) = (1, 2), d = (2, 4) - (2, 0) = (0, 4): D_perp = (1, 0)
    assert sent(engine, C).tolist() == [3, 4]


@pytest.mark.parametrize("how", ["lose", "refuse"])
def test_a_client_whose_work_was_lost_or_refused_starts_anew(how: str) -> None:
    engine = started(OrthoFL(**QUARTERS), [0, 0])
    arrive_all(engine, (A, [4, 0], 1.0), (B, [0, 4], 2.0))
    before = engine.model
    getattr(engine, how)(A, at=3.0)
    assert engine.model is before
    assert starts_anew(engine, A)
    assert engine.state.tau[A] == 2
    engine.arrive(A, [9, 9], at=4.0)
    assert noted(engine) == {"s": 1, "beta_t": 0.5}  # fresh


def test_a_client_that_comes_back_after_a_long_absence_starts_anew() -> None:
    engine = started(OrthoFL(**QUARTERS), [0, 0])
    engine.arrive(A, [4, 0], at=1.0, reachable=False)
    assert (A in engine.state.tau, A in engine.state.snapshots, A in engine.state.replies) == (False, False, False)
    for n in range(3):
        engine.arrive(B, [0, 4], at=2.0 + n)
    engine.ready(A, at=10.0)
    assert starts_anew(engine, A)
    assert engine.state.tau[A] == 4


def test_a_client_that_leaves_while_its_reply_waits_for_a_seat_starts_anew() -> None:
    engine, p, q = in_turns()
    engine.arrive(p, [4, 0], at=1.0)
    engine.advance()
    engine.leave(p, at=1.5)
    engine.arrive(q, [2, 8], at=2.0, reachable=False)
    engine.advance()
    engine.ready(p, at=3.0)
    engine.advance()
    assert starts_anew(engine, p)


def test_a_client_that_expired_is_not_calibrated_with_what_it_was_sent_before() -> None:
    engine = started(OrthoFL(**QUARTERS), [0, 0])
    engine.expire(A, at=1.0)
    engine.arrive(B, [0, 4], at=2.0)
    engine.back(A, at=3.0)
    assert starts_anew(engine, A)


def test_an_update_over_the_limit_of_staleness_is_rejected_and_its_client_starts_anew() -> None:
    engine = started(OrthoFL(max_staleness=1, **QUARTERS), [0, 0])
    arrive_all(engine, (A, [4, 0], 1.0), (A, [4, 0], 2.0))
    engine.arrive(B, [9, 9], at=3.0)  # s = 3
    assert [action for action in engine.log[-2].actions if isinstance(action, Reject)] == [
        Reject(B, 1, "staleness 2 is over 1")
    ]
    assert engine.model.tolist() == [3, 0]
    assert starts_anew(engine, B)


def test_a_reply_keeps_the_clients_own_statistics_and_the_model_mixes_them() -> None:
    engine = started(OrthoFL(**QUARTERS), [0, 0, 2, 5], statistics=True)
    assert reply_after(engine, A, [4, 0, 6, 3], at=1.0) == [4, 0, 6, 3]
    assert engine.model.tolist() == [2, 0, 4, 5]  # mean .5 * 2 + .5 * 6; seen max(5, 3)
    engine.arrive(B, [2, 2, 8, 9], at=2.0)
    # D = (2, 0), d = (2, 2): half of d goes, (1, -1); with the statistics' (2, 0) and (6, 4) it would be another share
    assert sent(engine, B).tolist() == [3, 1, 8, 9]
    assert engine.model.tolist() == [2, 0.5, 5, 9]  # s = 2: .75 * 4 + .25 * 8; max(5, 9)


def test_without_the_moving_average_statistics_are_the_clients_and_counters_never_fall() -> None:
    engine = started(OrthoFL(moving_average=False), [0, 0, 2, 5], statistics=True)
    local = torch.tensor([4.0, 0, 6, 3], dtype=torch.float64)
    assert model_after(engine, A, local, at=1.0) == [4, 0, 6, 5]
    assert local.tolist() == [4, 0, 6, 3]  # what was received stays as it was
    assert sent(engine, A) is engine.model


def test_pairwise_sends_the_clients_own_statistics_too() -> None:
    engine = started(OrthoFL(projection="pairwise", **QUARTERS), [0, 0, 2, 5], statistics=True)
    engine.arrive(A, [4, 0, 6, 3], at=1.0)
    assert reply_after(engine, B, [3, 4, 8, 9], at=2.0) == [4, 4, 8, 9]
    assert engine.model.tolist() == [2.25, 1, 5, 9]


def test_snapshots_are_the_published_tensors_themselves() -> None:
    engine = started(OrthoFL(), [0, 0], {A: 10, B: 10, C: 10})
    state, first = engine.state, engine.model
    assert all(state.snapshots[client] is first and sent(engine, client) is first for client in (A, B, C))
    engine.arrive(A, [1, 0], at=1.0)
    assert state.snapshots[A] is state.model
    assert state.snapshots[B].data_ptr() == state.snapshots[C].data_ptr() == first.data_ptr()
    assert len(state.replies) == 0  # on its way: the open ticket holds it


def test_a_checkpoint_stores_each_model_once(tmp_path: Path) -> None:
    engine = started(OrthoFL(), [0, 0], dict.fromkeys(range(20), 10))
    arrive_all(engine, (A, [1, 0], 1.0), (B, [0, 1], 2.0))
    Checkpoints(tmp_path).save(lambda put: [pack_state(engine.state, put), pack(engine.ledger.open_jobs, put)])
    stored = [
        tensor.tolist()
        for tensor in load_file(tmp_path / "000001.safetensors").values()
        if tensor.dtype == torch.float64
    ]
    # W0 for 18 clients, W1 for A, W2 for B and as the model, and what A and B were sent
    assert len(stored) == 5
    assert engine.world.model.tolist() in stored


def test_the_chain_is_kept_only_where_it_is_used_and_snapshots_only_where_they_are() -> None:
    engine = started(OrthoFL(reference="chain"), [0, 0])
    engine.arrive(A, [1, 0], at=1.0)
    assert engine.state.chain is sent(engine, A)
    assert len(engine.state.snapshots) == 0
    assert started(OrthoFL(), [0, 0]).state.chain is None


def test_clients_are_sent_the_work_they_are_given() -> None:
    engine = started(OrthoFL(work=LocalWork(epochs=5)), [0])
    assert {ticket.work for ticket in engine.ledger.open_jobs.values()} == {LocalWork(epochs=5)}


def test_settings_that_do_not_count_together_change_nothing() -> None:
    """An ablation may be swept over the public code's setting: what has no meaning there is ignored."""
    alike = [
        (OrthoFL(calibrate=False), OrthoFL(calibrate=False, reference="chain", projection="pairwise")),
        (OrthoFL(projection="pairwise"), OrthoFL(projection="pairwise", reference="chain")),
        (
            OrthoFL(moving_average=False, reference="chain"),
            OrthoFL(moving_average=False, reference="chain", first_alpha=1.0),
        ),
    ]
    for one, other in alike:
        world = hand_world([0.0, 0.0], {0: 10, 1: 10})
        sent = []
        for strategy in (one, other):
            state = strategy.init(world)
            locals_ = {0: [1.0, 0.0], 1: [1.0, 1.0]}
            for client in locals_:
                strategy.on_event(state, ClientReady(0.0, client, 10))
            for now, client in ((1.0, 0), (2.0, 1)):
                update = UpdateArrived(
                    now, client, client, 0, world.model, torch.tensor(locals_[client], dtype=torch.float64), 10, 1, 0.0
                )
                strategy.on_event(state, update)
                (dispatch,) = strategy.on_event(state, ClientReady(now, client, 10))
                assert isinstance(dispatch, Dispatch)
                sent.append((state.model.tolist(), dispatch.model.tolist()))
        assert sent[:2] == sent[2:]


def test_an_update_of_a_client_that_was_never_announced_counts_from_its_base_version() -> None:
    # spec 8.1, first rows, with updates alone: A comes at t = 1 (s = 1), B at t = 2 (s = 2) with D = W, C = W0
    strategy = OrthoFL()
    world = hand_world([0.0, 0.0], {0: 10, 1: 10})
    state = strategy.init(world)
    for ticket, values in enumerate(([1.0, 0.0], [1.0, 1.0])):
        local = torch.tensor(values, dtype=torch.float64)
        strategy.on_event(state, UpdateArrived(1.0 + ticket, ticket, ticket, 0, world.model, local, 10, 1, 0.0))
    # W = 0.6 (1, 0), then (1 - b) W + b (1, 1) with b = 0.6 / sqrt(2) = 0.424264069: (0.6 + 0.4 b, b)
    assert state.model.tolist() == pytest.approx([0.769705627, 0.424264069], abs=1e-9)
    (dispatch,) = strategy.on_event(state, ClientReady(2.0, 1, 10))
    assert isinstance(dispatch, Dispatch)
    # D = (0.6, 0), d = (1, 1): D_perp = (0.3, -0.3), C = (1.3, 0.7)
    assert dispatch.model.tolist() == pytest.approx([1.3, 0.7])
