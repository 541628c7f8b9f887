"""Strategies in a Flower app: clients that know nothing of offbeat, and clients that follow its rules."""

from __future__ import annotations

from inspect import signature
from itertools import count

import pytest
import torch
from torch import nn

from deploy import messages

flwr = pytest.importorskip("flwr")  # the extra `flower`, which `make` installs

from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.common.constant import ErrorCode  # noqa: E402

from offbeat import flower  # noqa: E402
from offbeat import flower as flower_client  # noqa: E402
from offbeat.core.errors import ConfigError  # noqa: E402
from offbeat.core.jobs import Result  # noqa: E402
from offbeat.core.protocol import LocalWork  # noqa: E402
from offbeat.core.strategies import REGISTRY, FedAsync  # noqa: E402
from offbeat.core.vector import Binding  # noqa: E402
from offbeat.deploy.flower_transport import FlowerTransport  # noqa: E402
from offbeat.engine.live.transport import Disconnected, Hello, JobAnswer, JobMessage, Question  # noqa: E402
from offbeat.training.trainer import Training  # noqa: E402


@pytest.fixture(autouse=True)
def within_a_flower_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are stamped with the run they are of, which Flower sets in the processes it starts."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1, raising=False)
    monkeypatch.setattr("offbeat.deploy.flower_transport.POLL_SECONDS", 0.001)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def data(node: int):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(node))
    return x, (x[:, 0] > 0).long()


class Grid:
    """Flower's grid with nodes in this process: node n answers after n polls."""

    def __init__(self, app: ClientApp, nodes: int = 3) -> None:
        self.app, self.numbers, self.waiting = app, count(), {}
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            for node in range(1, nodes + 1)
        }
        self.sent: list[Message] = []

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        for message in messages:
            number = f"message {next(self.numbers)}"
            message.metadata._message_id = number
            self.sent.append(message)
            node = message.metadata.dst_node_id
            self.waiting[number] = [node, self.app(message, self.contexts[node])]
            yield number

    def pull_messages(self, message_ids):
        for number in message_ids:
            self.waiting[number][0] -= 1
            if self.waiting[number][0] < 0:
                yield self.waiting.pop(number)[1]


def stock() -> ClientApp:
    """As in Flower's PyTorch quickstart: it has never heard of offbeat."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = data(context.node_id)
        optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"train_loss": float(loss.detach()), "num-examples": len(y)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = data(context.node_id)
        right = float((model(x).argmax(1) == y).float().mean())
        return Message(RecordDict({"metrics": MetricRecord({"acc": right, "num-examples": len(y)})}), reply_to=message)

    return app


def test_a_server_app_has_the_settings_of_serve_and_hands_over_what_came_of_it():
    grid, came = Grid(stock()), []
    app = flower.as_server_app(
        "fedbuff", net, until="6updates", config={"lr": 0.5}, min_nodes=3, done=lambda *what: came.append(what)
    )
    app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}))
    ((module, outcome),) = came
    assert outcome.updates == 6
    assert torch.equal(torch.cat([module.weight.flatten(), module.bias]), outcome.model)
    assert [*signature(flower.as_server_app).parameters] == [*signature(flower.serve).parameters][1:]


def test_a_setting_that_no_server_has_is_refused_when_the_app_is_made():
    with pytest.raises(TypeError, match="min_sites"):
        flower.as_server_app("fedbuff", net, min_sites=3)


@pytest.mark.parametrize("strategy", ["fedavg", FedAsync(rho=0), "fedbuff", "ca2fl", "orthofl", "fedcompass"], ids=str)
def test_an_app_of_flowers_becomes_asynchronous_by_its_server_alone(strategy):
    model, outcome = flower.serve(
        Grid(stock()),
        strategy,
        net,
        until="30updates",
        config={"lr": 0.5},
        ask_clients=True,
        evaluate_every=1.0,
        min_nodes=3,
    )
    assert outcome.updates == 30
    assert outcome.metrics["acc"] > 0.8  # of 20 examples a node whose class is the sign of one number
    assert outcome.metrics["acc"] == pytest.approx(
        sum(float((model(data(n)[0]).argmax(1) == data(n)[1]).float().mean()) for n in (1, 2, 3)) / 3
    )


@pytest.mark.parametrize("name", ["fedprox", "fedasync"])
def test_clients_that_cannot_follow_a_rule_end_the_run_with_what_to_do(name: str):
    with pytest.raises(ConfigError, match=messages.RULE_NOT_SUPPORTED):
        flower.serve(Grid(stock()), name, net, config={"lr": 0.5}, min_nodes=3)


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"global", "fedpsa"}))
def test_clients_made_by_offbeat_follow_every_rule(name: str):
    app = flower.as_client_app(lambda context: (deep(), data(context.node_id)), Training(lr=0.5, steps=3, batch=20))
    _, outcome = flower.serve(Grid(app), name, deep, until="12updates,60s", min_nodes=3)
    assert outcome.updates == 12
    alone = name == "local"  # where nobody shares anything the server's model stays what it was
    assert torch.equal(outcome.model, torch.cat([p.flatten() for p in deep().parameters()])) == alone


def test_what_a_rule_keeps_is_the_nodes_own_once_its_update_was_accepted():
    app = flower.as_client_app(lambda context: (net(), data(context.node_id)), Training(lr=0.5, steps=3, batch=20))
    grid = Grid(app)
    flower.serve(grid, "aso_fed", net, until="12updates,20s", min_nodes=3)
    for context in grid.contexts.values():
        kept = [name for name in context.state if name.startswith("offbeat-memory")]
        assert 1 <= len(kept) <= 2  # of the last accepted one, and of what it was sent last


def test_a_strategy_that_needs_shared_examples_says_what_to_do():
    with pytest.raises(ConfigError, match=messages.NEEDS_OFFBEAT_SERVE):
        flower.serve(Grid(stock()), "fedpsa", net, min_nodes=3)


def failing(node: int, times: int) -> ClientApp:
    """One node's training raises so often."""
    app, tried = stock(), count()

    def call(message: Message, context: Context) -> Message:
        if context.node_id == node and message.metadata.message_type == "train" and next(tried) < times:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no such file"), reply_to=message)
        return app(message, context)

    return call  # type: ignore[return-value]


def test_a_node_whose_training_raises_has_failed_and_is_not_sent_the_same_job_for_ever():
    grid = Grid(failing(3, times=2))
    _, outcome = flower.serve(grid, FedAsync(rho=0), net, until="40updates", config={"lr": 0.5}, min_nodes=3)
    assert outcome.updates == 40
    jobs = [m.content["offbeat-job"]["job"] for m in grid.sent if m.metadata.dst_node_id == 3]
    assert len(jobs) == len(set(jobs)) > 2


def half_frozen() -> nn.Module:
    model = deep()
    model[0].weight.requires_grad_(False)
    return model


def test_what_a_node_sends_of_frozen_parameters_reaches_nobody():
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        state = message.content["arrays"].to_torch_state_dict()
        assert torch.equal(state["0.weight"], half_frozen().state_dict()["0.weight"])
        if context.node_id == 1:
            state["0.weight"] = torch.full_like(state["0.weight"], float("nan"))
        metrics = MetricRecord({"num-examples": 5})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    model, outcome = flower.serve(Grid(app), FedAsync(rho=0), half_frozen, until="12updates", min_nodes=3)
    assert outcome.updates == 12
    assert torch.equal(model[0].weight, half_frozen()[0].weight)


def test_a_node_that_left_with_its_answer_under_way_is_greeted_when_it_comes_back():
    grid = Grid(stock(), nodes=2)
    nodes = FlowerTransport(grid, Binding(net()), {"lr": 0.5}, ask_clients=False)
    assert [heard.address for heard in nodes.receive(0.0)] == [1, 2]
    order = JobMessage(0, 0, 0, 0, torch.zeros(8), LocalWork(), 20, 0, None)
    nodes.send(1, order)
    left = grid.contexts.pop(1)
    nodes._scanned_at = float("-inf")
    assert [type(heard) for heard in nodes.receive(0.0)] == [Disconnected]
    assert [type(heard) for heard in nodes.receive(0.0)] == [JobAnswer]
    grid.contexts[1] = left
    nodes._scanned_at = float("-inf")
    assert [type(heard) for heard in nodes.receive(0.0)] == [Hello]


def test_of_a_node_that_never_answers_the_last_orders_are_remembered_and_of_one_that_is_gone_none(monkeypatch):
    """An order holds a model: a run of weeks must not collect them."""
    grid, now = Grid(stock(), nodes=2), [0.0]
    monkeypatch.setattr("offbeat.deploy.flower_transport.time.monotonic", lambda: now[0])
    monkeypatch.setattr(grid, "pull_messages", lambda numbers: [])
    nodes = FlowerTransport(grid, Binding(net()), {"lr": 0.5}, ask_clients=True)
    nodes._pull_messages()
    for ticket in range(10):
        nodes.send(1 + ticket % 2, JobMessage(ticket, 0, 0, 0, torch.zeros(8), LocalWork(), 20, 0, None))
        nodes.send(1 + ticket % 2, Question(float(ticket), 0, torch.zeros(8)))
    orders = [order for _, order in nodes._open.values()]
    assert [order.ticket for order in orders if isinstance(order, JobMessage)] == [6, 7, 8, 9]
    assert [order.now for order in orders if isinstance(order, Question)] == [6.0, 7.0, 8.0, 9.0]
    grid.contexts.pop(1)
    for now[0], left in ((10.0, 8), (600.0, 8), (620.0, 4)):  # it may come back with its answer, for ten minutes
        nodes._pull_messages()
        assert len(nodes._open) == left


def test_work_without_memory_leaves_what_a_rule_kept():
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    result = Result(0, torch.zeros(1), 1, 1, memory={"h": torch.ones(2)})
    flower_client._store_memory(context, result, {})
    kept = flower_client._load_memory(context, 0)
    flower_client._store_memory(context, Result(1, torch.zeros(1), 1, 1), kept)
    assert torch.equal(flower_client._load_memory(context, 1)["h"], torch.ones(2))


@pytest.mark.parametrize("told", [float("inf"), float("nan"), 1e300, -1.0])
def test_a_number_of_examples_that_cannot_be_meant_is_not_counted(told: float):
    app = stock()

    def lies(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if context.node_id == 1 and message.metadata.message_type == "train":
            reply.content["metrics"] = MetricRecord({"num-examples": told, "steps": told, "seconds": told})
        return reply

    grid = Grid(lies)  # type: ignore[arg-type]
    _, outcome = flower.serve(grid, FedAsync(rho=0), net, until="12updates", config={"lr": 0.5}, min_nodes=3)
    assert outcome.updates == 12
    assert bool(outcome.model.isfinite().all())
