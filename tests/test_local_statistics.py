"""training.bn = "local": BatchNorm's statistics stay at the clients, whatever the method, and are what clients are
judged with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from core import messages
from offbeat.api.run_simulation import simulate
from offbeat.core.client_environment import JobTiming
from offbeat.core.errors import ConfigError
from offbeat.core.jobs import CLIENT_STATISTICS, Job, Result, extract_client_statistics, insert_client_statistics
from offbeat.core.protocol import ClientReady, Commit, Dispatch, LocalWork, Reject, World
from offbeat.core.strategies import REGISTRY, FedAsync, FedPSA, Global, Local
from offbeat.core.vector import Layout, flatten
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.gate import Gate
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.testing import ScriptedEngine, TinyClients, check, hand_world, play, random_script, tiny_world, with_probe
from offbeat.testing.tiny_worlds import layout_of
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training
from offbeat.workers.inline import Inline

TWO = {0: 10, 1: 10}
CENTRE = {0: 10.0, 1: -2.0}


def moved(layout: Layout) -> Any:
    """Clients add 4 to w; their running mean goes half the way to 10, or to -2, and one batch is counted."""

    def train(job: Job) -> Result:
        w, mean, seen = job.base.tolist()
        local = torch.tensor([w + 4, (mean + CENTRE[job.client]) / 2, seen + 1], dtype=job.base.dtype)
        return Result(job.ticket, local, job.num_examples, steps=1)

    return lambda job: extract_client_statistics(job, train(insert_client_statistics(job, layout)), layout)


def kept(engine: ScriptedEngine, client: int) -> list[float]:
    return engine.memory[client][CLIENT_STATISTICS].tolist()


def test_a_client_goes_on_with_its_own_statistics_and_sends_back_those_it_was_sent() -> None:
    world = hand_world([0, 2, 0], TWO, statistics=True)
    engine = ScriptedEngine(FedAsync(alpha=0.5, staleness="constant"), world, train=moved(world.layout))
    engine.start()
    engine.arrive(0, at=1.0)  # w = 4, mean = (2 + 10) / 2 = 6
    # w: .5 * 4; the server's statistics do not move
    assert (kept(engine, 0), engine.model.tolist()) == ([6, 1], [2, 2, 0])
    engine.arrive(0, at=2.0)  # from w = 2 and its own mean 6: w = 6, mean = (6 + 10) / 2 = 8
    assert (kept(engine, 0), engine.model.tolist()) == ([8, 2], [4, 2, 0])
    engine.arrive(1, at=3.0)  # its first job begins with what the model came with: mean = (2 - 2) / 2 = 0
    assert (kept(engine, 1), engine.model.tolist()) == ([0, 1], [4, 2, 0])  # base 0: w = .5 * 4 + .5 * 4


def test_statistics_of_a_rejected_update_are_not_kept() -> None:
    world = hand_world([0, 2, 0], TWO, statistics=True)
    engine = ScriptedEngine(FedAsync(alpha=0.5, max_staleness=0), world, train=moved(world.layout))
    engine.start()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=2.0)
    assert isinstance(engine.log[-2].actions[0], Reject)
    assert list(engine.memory) == [0]


def test_where_statistics_lie_between_parameters_they_are_found_all_the_same() -> None:
    layout = layout_of([("a", (1,), "param"), ("mean", (2,), "buffer"), ("b", (1,), "param"), ("seen", (), "counter")])
    vector = torch.tensor([1.0, 2, 3, 4, 5])
    assert layout.statistics(vector).tolist() == [2, 3, 5]
    assert layout.with_statistics(vector, torch.tensor([7.0, 8, 9])).tolist() == [1, 7, 8, 4, 9]
    assert vector.tolist() == [1, 2, 3, 4, 5]
    plain = layout_of([("a", (2,), "param")])
    assert plain.statistics(vector[:2]).tolist() == []


class Halfway(nn.Module):
    """BatchNorm on one input with momentum 1/2, then a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, momentum=0.5, affine=False)
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.head.weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(x))
        return out


PAIRS = [(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)), (torch.tensor([[10.0], [30.0]]), torch.zeros(2, 1))]


def trained(trainer: Trainer, model: Tensor, memory: dict[str, Tensor], client: int = 0) -> Result:
    return trainer(Job(0, client, 0, model, 0, LocalWork(steps=1), 2, memory, seed=0))


def test_a_batchnorm_of_torch_worked_by_hand() -> None:
    module = Halfway()
    trainer = Trainer(module, ClientData.separate(PAIRS), Training(bn="local", lr=0.125, batch=2))
    model = flatten(module)
    assert model.tolist() == [1, 0, 1, 0]  # weight; running mean, running variance; batches
    first = trained(trainer, model, {})
    # mean of (1, 3): 2, variance (unbiased) 2: half the way from 0 to 2 and from 1 to 2
    assert first.memory[CLIENT_STATISTICS].tolist() == [1, 1.5, 1]
    assert first.local[1:].tolist() == [0, 1, 0]  # as sent
    again = trained(trainer, model, dict(first.memory))
    assert again.memory[CLIENT_STATISTICS].tolist() == [1.5, 1.75, 2]  # from 1 to 2 and from 1.5 to 2
    shared = Trainer(module, ClientData.separate(PAIRS), Training(lr=0.125, batch=2))
    plain = trained(shared, model, {})
    assert plain.local[1:].tolist() == [1, 1.5, 1]
    assert torch.equal(plain.local[:1], first.local[:1])  # training itself does not read them
    assert plain.memory == {}


def test_a_sketch_is_of_what_is_uploaded_so_that_the_server_can_compare_it() -> None:
    module, strategy = Halfway(), FedPSA(buffer=1, sketch=2)
    seen: list[list[float]] = []

    def probe(vector: Tensor) -> Tensor:
        seen.append(vector[1:].tolist())
        return torch.zeros(2)

    world = World(flatten(module), Layout.of(module), TWO, probe=probe)
    state = strategy.init(world)
    (dispatch,) = strategy.on_event(state, ClientReady(0.0, 0, 2))
    assert isinstance(dispatch, Dispatch)
    trainer = Trainer(module, ClientData.separate(PAIRS), Training(bn="local", batch=2), probe=probe)
    seen.clear()
    trainer(
        Job(
            0,
            0,
            0,
            world.model,
            0,
            replace(dispatch.work, steps=1),
            2,
            {CLIENT_STATISTICS: torch.tensor([5.0, 6.0, 7.0])},
            seed=0,
        )
    )
    assert seen == [[0, 1, 0]]


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "global"])
@pytest.mark.parametrize("pattern", ["calm", "losses", "newcomers"])
def test_the_servers_statistics_stay_what_the_model_came_with_to_the_last_bit(name: str, pattern: str) -> None:
    strategy = REGISTRY[name]()
    world = with_probe(tiny_world(4, torch.float32, buffers=True, in_the_middle=pattern == "losses"), strategy)
    layout, clients = world.layout, TinyClients(world.layout, probe=world.probe)
    came_with, kept_by_clients = layout.statistics(world.model), 0

    def train(job: Job) -> Result:
        nonlocal kept_by_clients
        assert torch.equal(layout.statistics(job.base), came_with)
        result = extract_client_statistics(job, clients(insert_client_statistics(job, layout)), layout)
        before = job.memory.get(CLIENT_STATISTICS, came_with)
        assert result.memory[CLIENT_STATISTICS][-1] == before[-1] + result.steps  # it counts on from its own
        kept_by_clients += 1
        return result

    engine = play(strategy, random_script(pattern, 1, 30), world, train=train)
    commits = [action.model for entry in engine.log for action in entry.actions if isinstance(action, Commit)]
    assert all(torch.equal(layout.statistics(model), came_with) for model in commits)
    assert kept_by_clients > 5


def test_the_laws_hold_where_clients_keep_their_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TinyClients.__call__

    def keeping(self: TinyClients, job: Job) -> Result:
        return extract_client_statistics(job, plain(self, insert_client_statistics(job, self.layout)), self.layout)

    monkeypatch.setattr(TinyClients, "__call__", keeping)
    for name in ("fedavg", "orthofl", "safa"):
        for finding in check(REGISTRY[name](), scripts=6):
            assert finding.passed, finding


def admitted(memory: dict[str, Tensor], **settings: Any) -> bool:
    """Is the update let through, and its memory with it?"""
    world = hand_world([0, 2, 0], TWO, statistics=True)
    gate = Gate(world.layout, torch.float64, **settings)
    job = Job(7, 0, 0, world.model, 0, LocalWork(), 10, {}, seed=0)
    (verdict,) = gate.inspect([Result(7, world.model.clone(), 10, 1, memory=memory)], {7: job})
    return isinstance(verdict, Result) and verdict.memory.keys() == memory.keys()


def test_the_gate_lets_own_statistics_pass_that_are_as_long_as_they_should_be_and_finite() -> None:
    def own(*values: float) -> dict[str, Tensor]:
        return {CLIENT_STATISTICS: torch.tensor(values, dtype=torch.float64)}

    assert admitted(own(6, 1), local_statistics=True)
    assert not admitted(own(6, 1, 2), local_statistics=True)
    assert not admitted(own(float("nan"), 1), local_statistics=True)
    assert not admitted(own(6, 1))  # nobody asked for them: they are dropped


class Speeds:
    """Client 0 answers every 2 s, client 1 every 3 s, client 2 never before 100 s."""

    def time_job(self, client: int, index: int, work: LocalWork, num_examples: int, started: float) -> JobTiming:
        seconds = (2.0, 3.0, 100.0)[client]
        return JobTiming(seconds, seconds)

    def next_available(self, client: int, now: float) -> float:
        return now

    def next_departure(self, client: int, now: float) -> float:
        return float("inf")

    def num_examples(self, client: int, index: int, now: float) -> int:
        return 10


def engine_of(strategy: Any, seconds: float, **settings: Any) -> VirtualEngine:
    world = hand_world([0, 2, 0], {0: 10, 1: 10, 2: 10}, statistics=True)
    gate = Gate(world.layout, torch.float64, local_statistics=True)
    return VirtualEngine(
        strategy, world, Speeds(), Inline(moved(world.layout)),
        until=Until(seconds=seconds), gate=gate, evaluate_every=1.0,
        evaluate=lambda model: {"w": float(model[0]), "mean": float(model[1]), "seen": float(model[2])}, **settings,
    )  # fmt: skip


def metric(engine: VirtualEngine, key: str) -> list[float]:
    return [value for (value,) in engine.trace.rows(f"SELECT value FROM metrics WHERE key = '{key}' ORDER BY seq")]


def test_the_model_is_judged_with_the_statistics_of_each_client_that_has_any() -> None:
    engine = engine_of(FedAsync(alpha=0.5, staleness="constant"), 4.0)
    engine.run()
    # at 2 client 0 has mean 6; at 3 client 1 has 0; at 4 client 0 has 8. Before 2 nobody has any: 2, as it came
    assert metric(engine, "mean") == [2, 2, 6, 3, 4]
    assert metric(engine, "seen") == [0, 0, 1, 1, 1.5]
    # w: at 2 .5 * 4; at 3 1 + .5 * 4; at 4 .5 * 3 + .5 * (2 + 4). One w for all: the mean changes nothing
    assert metric(engine, "w") == [0, 0, 2, 3, 4.5]
    assert engine.coordinator.model.tolist() == [4.5, 2, 0]


def test_a_survey_judges_each_client_with_its_own() -> None:
    asked: list[dict[int, list[float]]] = []

    class Survey:
        facts: ClassVar[dict[str, str]] = {}

        def __call__(self, model_of: Any) -> Any:
            asked.append({client: model_of(client).tolist() for client in (0, 1, 2)})
            return {}, {}

    engine_of(FedAsync(alpha=0.5, staleness="constant"), 4.0, survey=Survey()).run()
    assert asked == [{0: [4.5, 8, 2], 1: [4.5, 0, 1], 2: [4.5, 2, 0]}]  # client 2 was never heard: as the model came


def test_each_local_client_is_evaluated_with_its_own_model_and_statistics() -> None:
    outcome = engine_of(Local(), 3.0).run()
    # client 0: w = 4, mean = 6; client 1: w = 4, mean = 0; client 2: w = 0, mean = 2
    assert outcome.metrics == {"w": pytest.approx(8 / 3), "mean": pytest.approx(8 / 3), "seen": pytest.approx(2 / 3)}


def test_local_statistics_are_not_sent() -> None:
    engine = engine_of(FedAsync(), 2.0)
    engine.run()
    # one float64
    assert {size for (size,) in engine.trace.rows("SELECT bytes FROM trace WHERE kind IN ('dispatch', 'arrive')")} == {
        8
    }


def test_stopped_after_every_event_and_resumed_each_client_has_its_own_again(tmp_path: Path) -> None:
    whole = engine_of(FedAsync(alpha=0.5), 20.0)
    outcome = whole.run()
    stops, done = 0, None
    while done is None:
        trace, checkpoints = Trace(tmp_path / "run.sqlite"), Checkpoints(tmp_path / "checkpoint")
        engine = engine_of(FedAsync(alpha=0.5), 20.0, trace=trace, checkpoints=checkpoints)
        engine.restore()
        engine.interrupt = True  # after one event
        ended = engine.run()
        if ended.reason == "seconds":
            done = ended
        else:
            stops += 1
            trace.close()
    assert stops > 20
    assert torch.equal(done.model, outcome.model)
    assert (engine.trace.digest(), done.metrics) == (whole.trace.digest(), outcome.metrics)
    trace.close()


OWN = Training(bn="local", lr=0.125, batch=2, epochs=1)
RUN: dict[str, Any] = {"delays": [2.0, 3.0], "until": "30s", "evaluate_every": 10.0}


def test_clients_of_different_scale_share_a_model_and_keep_their_scale() -> None:
    sim = simulate(Halfway(), PAIRS, FedAsync(), training=OWN, **RUN)
    assert _norm(sim.state_dict()) == [0, 1, 0]  # what is exported has the statistics of nobody
    # to their own statistics both clients' inputs are -1 and 1 over sqrt 2: the running mean tends to 2 (20), the
    # running variance to 2 (200), and (1 - 2) / sqrt 2 = (10 - 20) / sqrt 200. With labels 0 and one weight w the loss
    # is w^2 / 2. The survey judges each client on its own inputs; the test data is everybody's, and the inputs of the
    # other client are far off
    w = sim.state_dict()["head.weight"].item()
    assert sim.curve("loss/all").values[-1] == pytest.approx(w**2 / 2, rel=1e-2)
    assert sim.metrics["loss"] > 10 * w**2


def test_shared_statistics_fit_neither_of_them() -> None:
    sim = simulate(Halfway(), PAIRS, FedAsync(), training=replace(OWN, bn="shared"), **RUN)
    w = sim.state_dict()["head.weight"].item()
    assert _norm(sim.state_dict())[2] > 0
    assert sim.curve("loss/all").values[-1] != pytest.approx(w**2 / 2, rel=0.1)


def _norm(state: dict[str, Tensor]) -> list[float]:
    return [value.item() for name, value in state.items() if name.startswith("norm.")]


def test_a_model_without_statistics_cannot_keep_any() -> None:
    with pytest.raises(ConfigError, match=messages.NO_STATISTICS):
        simulate(nn.Linear(1, 1), PAIRS, FedAsync(), training=OWN, **RUN)


def test_pooled_data_has_no_local_statistics() -> None:
    sim = simulate(Halfway(), PAIRS, Global(), training=OWN, **RUN)
    assert sim.state_dict()["norm.num_batches_tracked"].item() > 0


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=messages.INVALID_BN):
        Training(bn="private")  # type: ignore[arg-type]
