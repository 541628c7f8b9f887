"""FLANP, worked by hand."""

from typing import Any

from offbeat.core.protocol import Note, Reject
from offbeat.core.strategies.flanp import FLANP
from offbeat.testing import ScriptedEngine, hand_world
from strategies.scripted_runs import arrive_all, at_work, model_after, model_at

THREE = {0: 10, 1: 10, 2: 20}


def profiled(
    strategy: FLANP, model: list[float], clients: dict[int, int], local: list[float], **world: Any
) -> ScriptedEngine:
    """Client k takes k + 1 seconds and answers `local`; the first stage's first round is open."""
    engine = ScriptedEngine(strategy, hand_world(model, clients, **world))
    engine.start()
    for client in clients:
        engine.arrive(client, local, at=client + 1.0)
    engine.advance()
    return engine


def answer(engine: ScriptedEngine, *locals: list[float]) -> None:
    """Those in flight answer, a second apart."""
    for client, local in zip(at_work(engine), locals, strict=True):
        engine.arrive(client, local, at=engine.now + 1.0)
    engine.advance()


def stages(engine: ScriptedEngine) -> list[tuple[float, float, float, float]]:
    said = [action.values for entry in engine.log for action in entry.actions if isinstance(action, Note)]
    return [(v["stage"], v["n"], v["delta"], v["first"]) for v in said if "stage" in v]


def test_all_clients_are_measured_in_a_fedavg_round_and_the_fastest_start() -> None:
    engine = ScriptedEngine(FLANP(n0=2), hand_world([0], {0: 10, 1: 10, 2: 20}))
    engine.start()
    assert at_work(engine) == [0, 1, 2]
    assert arrive_all(engine, (2, [4], 1.0), (0, [8], 2.0), (1, [16], 3.0)) == [8]  # (20 * 4 + 10 * 8 + 10 * 16) / 40
    engine.advance()
    assert at_work(engine) == [0, 2]
    assert all(job.base is engine.model for job in engine.ledger.open_jobs.values())


def test_a_stage_ends_when_the_mean_delta_is_shorter_than_half_of_its_first_and_n_doubles() -> None:
    engine = profiled(FLANP(n0=1), [0, 0], THREE, [0, 0])
    answer(engine, [6, 8])  # delta (6, 8): length 10
    answer(engine, [9, 12])  # delta (3, 4): length 5, not less than 5
    assert at_work(engine) == [0]
    answer(engine, [9, 16])  # delta (0, 4): less than 5
    assert at_work(engine) == [0, 1]  # n = 2, from the model of the stage before
    assert {tuple(job.base.tolist()) for job in engine.ledger.open_jobs.values()} == {(9, 16)}
    answer(engine, [9, 24], [9, 16])  # (24 + 16) / 2: delta (0, 4), against which this stage is measured
    answer(engine, [9, 21], [9, 21])  # delta (0, 1)
    assert at_work(engine) == [0, 1, 2]  # n = min(4, 3)
    answer(engine, [9, 25], [9, 25], [9, 21])  # (10 * 25 + 10 * 25 + 20 * 21) / 40 = 23
    assert engine.model.tolist() == [9, 23]
    assert stages(engine) == [(0, 1, 10, 10), (0, 1, 5, 10), (0, 1, 4, 10), (1, 2, 4, 4), (1, 2, 1, 4), (2, 3, 2, 2)]


def test_a_stage_ends_after_so_many_rounds_in_any_case() -> None:
    engine = profiled(FLANP(n0=1, max_rounds_per_stage=2), [0], THREE, [0])
    answer(engine, [8])
    answer(engine, [16])
    assert at_work(engine) == [0, 1]
    answer(engine, [32], [32])
    assert at_work(engine) == [0, 1]
    answer(engine, [64], [64])
    assert at_work(engine) == [0, 1, 2]
    answer(engine, [65], [65], [65])  # with everybody in, there is no other stage
    answer(engine, [65], [65], [65])
    assert at_work(engine) == [0, 1, 2]
    assert engine.state.stage == 2


def test_statistics_do_not_count_in_the_length() -> None:
    engine = profiled(FLANP(n0=2), [0, 0, 0], THREE, [0, 0, 3], statistics=True)
    answer(engine, [4, 1, 4], [8, 5, 9])
    assert engine.model.tolist() == [6, 3, 9]  # equal examples; max(3, 4, 9)
    answer(engine, [8, 99, 10], [8, 99, 7])  # delta 2 of 6, whatever the buffer does
    assert at_work(engine) == [0, 1, 2]
    assert stages(engine) == [(0, 2, 6, 6), (0, 2, 2, 6)]


def test_missing_clients_are_replaced_by_the_next_in_speed() -> None:
    engine = profiled(FLANP(n0=2), [0], THREE, [0])
    engine.lose(1, at=4.0, reachable=False)
    assert model_after(engine, 0, [8], at=5.0) == [8]
    engine.advance()
    assert at_work(engine) == [0, 2]
    engine.back(1, at=6.0)
    answer(engine, [16], [16])
    assert at_work(engine) == [0, 1]


def test_a_stage_whose_clients_are_all_gone_goes_on_with_others() -> None:
    engine = profiled(FLANP(n0=1), [0], THREE, [0])
    engine.lose(0, at=4.0, reachable=False)
    engine.advance()
    assert at_work(engine) == [1]
    engine.lose(1, at=5.0, reachable=False)
    engine.advance()
    assert at_work(engine) == [2]
    engine.lose(2, at=6.0, reachable=False)
    engine.advance()
    assert at_work(engine) == []
    engine.back(1, at=7.0)
    engine.advance()
    assert at_work(engine) == [1]


def test_a_client_that_leaves_the_bench_is_not_called_up() -> None:
    engine = profiled(FLANP(n0=1), [0], THREE, [0])
    engine.leave(1, at=4.0)
    engine.lose(0, at=5.0, reachable=False)
    engine.advance()
    assert at_work(engine) == [2]


def test_rounds_without_reports_count_towards_the_end_of_a_stage_and_keep_the_model() -> None:
    engine = profiled(FLANP(n0=1, max_rounds_per_stage=2), [0], THREE, [0])
    engine.lose(0, at=4.0)
    engine.advance()
    engine.refuse(0, at=5.0)
    engine.advance()
    assert (engine.ledger.version, at_work(engine)) == (1, [0, 1])


def test_a_newcomer_is_measured_and_takes_its_place() -> None:
    engine = profiled(FLANP(n0=2, max_rounds_per_stage=1), [0], {0: 10, 1: 10}, [0])
    engine.join(2, at=3.0)
    engine.arrive(2, [50], at=4.5)  # 1.5 s: between 0 and 1
    assert [action.client for entry in engine.log for action in entry.actions if isinstance(action, Reject)] == [2]
    assert engine.model.tolist() == [0]
    answer(engine, [4], [4])  # n = 2 of 3: the stage is over, n = min(4, 3)
    assert at_work(engine) == [0, 1, 2]


def test_a_newcomer_faster_than_the_stage_replaces_its_slowest() -> None:
    engine = profiled(FLANP(n0=1), [0], {0: 10, 1: 10}, [0])
    engine.join(2, at=3.0)
    engine.arrive(2, [50], at=3.5)
    engine.arrive(0, [4], at=4.0)  # its jobs took 1 s and 2 s
    engine.advance()
    assert at_work(engine) == [2]


def test_those_not_measured_in_profiling_come_in_until_the_first_stage_has_n0() -> None:
    engine = ScriptedEngine(FLANP(n0=3), hand_world([0], {0: 10, 1: 10, 2: 10, 3: 10}))
    engine.start()
    engine.lose(2, at=1.0, reachable=False)
    engine.lose(3, at=1.0, reachable=False)
    arrive_all(engine, (0, [8], 1.5), (1, [8], 2.0))
    engine.advance()
    assert at_work(engine) == [0, 1]  # two are measured
    engine.back(2, at=2.0)
    engine.arrive(2, [1], at=2.5)
    answer(engine, [16], [16])  # delta 8
    assert at_work(engine) == [0, 1, 2]
    engine.back(3, at=engine.now)
    engine.arrive(3, [1], at=engine.now + 0.25)
    answer(engine, [24], [24], [24])
    # mean seconds: (1.5 + 1.5 + 1.25) / 3 of client 0, (2 + 2.5 + 2.25) / 3 = 2.25 of 1, (0.5 + 3.25) / 2 = 1.875 of 2,
    # 0.25 of 3
    assert at_work(engine) == [0, 2, 3]
    assert [(stage, n) for stage, n, _, _ in stages(engine)] == [(0, 2), (0, 3)]


def test_a_sample_is_drawn_among_the_stage() -> None:
    chosen = []
    for seed in range(20):
        engine = profiled(FLANP(n0=2, sample=0.5), [0], dict.fromkeys(range(4), 10), [0], seed=seed)
        chosen += at_work(engine)
    assert len(chosen) == 20
    assert set(chosen) == {0, 1}


def test_at_the_deadline_a_round_goes_without_the_late_and_the_next_takes_others() -> None:
    engine = profiled(FLANP(n0=2, deadline=4.0), [0], THREE, [0])
    engine.arrive(0, [8], at=4.0)
    assert (model_at(engine, 7.0), at_work(engine)) == ([8], [0, 1, 2])
    assert model_after(engine, 1, [100], at=8.0) == [8]
    answered = [action.client for entry in engine.log for action in entry.actions if isinstance(action, Reject)]
    assert answered == [1]
