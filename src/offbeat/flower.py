"""Any strategy of offbeat in a Flower app of your own: change server_app.py, and the app is asynchronous.

    # server_app.py
    from offbeat.core.strategies import OrthoFL
    from offbeat.flower import as_server_app
    from my_app.task import Net

    app = as_server_app(OrthoFL(), model=Net, until="50updates", config={"lr": 0.01})

Clients stay as they are: they are sent `train` messages as Flower's own strategies send them ("arrays", "config") and
answer with "arrays" and "metrics", in which "num-examples" is told. A strategy that changes what clients do in each
step (a rule: FedProx, ASO-Fed, FedPSA, ...) needs clients that follow it: `as_client_app` makes one.

Each ticket is consumed once within one Flower run. A run that ends, or whose server dies, is not resumed: `offbeat
serve` is what does that.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError
from offbeat.core.protocol import Strategy, World
from offbeat.core.strategy_contract import contract_of
from offbeat.core.vector import Binding, Layout, flatten
from offbeat.engine.live.connections import Patience
from offbeat.engine.live.live_engine import LiveEngine
from offbeat.engine.live.site_ids import Roster
from offbeat.engine.progress import Outcome
from offbeat.engine.trace import Trace
from offbeat.engine.until import parse_until
from offbeat.experiment.spec.choices import default
from offbeat.training.client_data import ClientData, Pair
from offbeat.training.evaluation import Evaluator
from offbeat.training.sensitivity import make_probe
from offbeat.training.tasks import Loss, as_task
from offbeat.training.trainer import Training

try:
    from flwr.app import Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError("offbeat.flower needs Flower: pip install 'offbeat[flower]'") from error

from offbeat.deploy.flower_client import trained
from offbeat.deploy.flower_nodes import Nodes

__all__ = ["as_client_app", "as_server_app", "serve"]
log = logging.getLogger("offbeat")

Model = nn.Module | Callable[[], nn.Module]
Data = Pair | tuple[Pair, Pair]
Given = ParamSpec("Given")


def serve(
    grid: Grid,
    strategy: Strategy | str,
    model: Model,
    *,
    until: str = "100updates",
    config: Mapping[str, Any] | None = None,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    evaluate_every: float = 60.0,
    ask_clients: bool = False,
    min_nodes: int = 2,
    seed: int = 0,
    patience: Patience = Patience(),
    done: Callable[[nn.Module, Outcome], None] | None = None,
) -> tuple[nn.Module, Outcome]:
    """Run this strategy, within a `main` of your own: the module as it came out, and what is to be said of the run.

    model: the module that is trained, or what makes it. until: '100updates', '600s', 'acc=0.9,600s'. config: what every
    `train` message tells clients, as in Flower. evaluate: of a module, here at the server, every `evaluate_every`
    seconds; ask_clients: clients are sent `evaluate` messages then. done: is handed what is returned.
    """
    made: Strategy = default("strategy", strategy) if isinstance(strategy, str) else strategy
    sketcher = contract_of(made).sketcher
    if sketcher is not None and sketcher.signal != "parameters":
        raise ConfigError(
            f"{type(made).__name__} compares models on examples that server and clients share: serve it with "
            "'offbeat serve', or use signal='parameters'"
        )
    module = model() if not isinstance(model, nn.Module) else model
    layout, vector = Layout.of(module), flatten(module)
    probe = None
    if sketcher is not None:
        probe = make_probe(sketcher, module, ClientData.own([]), as_task(None, torch.int64), seed)
    world = World(model=vector, layout=layout, clients={}, seed=seed, probe=probe)
    binding = Binding(module)

    def score(model: Tensor) -> Mapping[str, float]:
        assert evaluate is not None
        binding.put(model)
        return evaluate(module.eval())

    nodes = Nodes(grid, binding, dict(config or {}), ask_clients)
    engine = LiveEngine(
        made,
        world,
        nodes,
        until=parse_until(until),
        evaluate=None if evaluate is None else score,
        every=evaluate_every,
        trace=Trace(),
        roster=Roster(most=sys.maxsize),  # Flower numbers its nodes, of which a simulation may have any number
        min_sites=min_nodes,
        patience=patience,
    )
    outcome = engine.run()
    binding.put(outcome.model)
    shown = ", ".join(f"{name} {value:.4f}" for name, value in outcome.metrics.items())
    log.info("%d updates, %d versions, %s: %s", outcome.updates, outcome.version, outcome.reason, shown)
    if done is not None:
        done(module, outcome)
    return module, outcome


def _app_of(run: Callable[Concatenate[Grid, Given], object]) -> Callable[Given, ServerApp]:
    """What makes a ServerApp of the same settings, which are listed once."""
    own = signature(run)

    def as_server_app(*args: Given.args, **settings: Given.kwargs) -> ServerApp:
        """A Flower ServerApp that runs this strategy; the settings are those of `serve`."""
        own.bind(None, *args, **settings)  # what cannot be meant is said now, not when the app is started
        app: ServerApp = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            run(grid, *args, **settings)

        return app

    shown = own.replace(parameters=list(own.parameters.values())[1:], return_annotation=ServerApp)
    as_server_app.__signature__ = shown  # type: ignore[attr-defined]
    return as_server_app


as_server_app = _app_of(serve)


def as_client_app(
    train_fn: Callable[[Context], tuple[nn.Module, Data]], training: Training = Training(), loss: Loss | None = None
) -> ClientApp:
    """A Flower ClientApp that follows any strategy's rule.

    train_fn(context) gives what a node trains: (module, (x, y)), or (module, ((x, y), (x_test, y_test))) if it is to
    answer `evaluate` messages too. `training` is what work means that says nothing else: rate, batch, steps or epochs.
    What a rule keeps between jobs lies in the context, as long as the node's SuperNode lives.
    """
    app: ClientApp = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        module, data = train_fn(context)
        content = trained(message.content, context, module, _halves(data)[0], training, loss)
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        module, data = train_fn(context)
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        pair = _halves(data)[1]
        values = {} if pair is None else Evaluator(module, *pair, loss)(flatten(module))
        metrics = MetricRecord({**values, "num-examples": 0 if pair is None else len(pair[1])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _halves(data: Data) -> tuple[Pair, Pair | None]:
    first, second = data
    return (first, second) if isinstance(first, tuple) else ((first, second), None)  # type: ignore[return-value]
