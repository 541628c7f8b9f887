"""Run any offbeat strategy in an existing Flower app; only server_app.py changes.

    # server_app.py
    from offbeat.core.strategies import OrthoFL
    from offbeat.flower import as_server_app
    from my_app.task import Net

    app = as_server_app(OrthoFL(), model=Net, until="50updates", config={"lr": 0.01})

Clients need no change: they receive `train` messages as from Flower's own strategies ("arrays", "config") and answer
with "arrays" and "metrics", including "num-examples". A strategy that changes the local steps (by a rule: FedProx,
ASO-Fed, FedPSA, ...) needs clients that follow the rule; `as_client_app` makes them.

Each ticket is consumed once within one Flower run. A run that ended, or whose server died, cannot be resumed here; use
`offbeat serve` for that.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import LocalWork, Strategy, World
from offbeat.core.strategy_contract import contract_of
from offbeat.core.threads import one_thread
from offbeat.core.vector import Binding, Layout, flatten
from offbeat.deploy import from_fields
from offbeat.engine import Outcome, Trace, parse_until
from offbeat.engine.live import LiveEngine, SiteIds, Timeouts
from offbeat.experiment.spec import default_choice
from offbeat.training import ClientData, Evaluator, Loss, Pair, Trainer, Training, as_task, make_probe

try:
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError("offbeat.flower needs Flower: pip install 'offbeat[flower]'") from error

from offbeat.deploy import JOB, TICKET, FlowerTransport, read_vectors

__all__ = ["as_client_app", "as_server_app", "serve"]
log = logging.getLogger("offbeat")

MEMORY_RECORD = "offbeat-memory"  # prefix of the records that hold a rule's memory

Model = nn.Module | Callable[[], nn.Module]
Data = Pair | tuple[Pair, Pair]
Parameters = ParamSpec("Parameters")


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
    patience: Timeouts = Timeouts(),
    done: Callable[[nn.Module, Outcome], None] | None = None,
) -> tuple[nn.Module, Outcome]:
    """Run a strategy within your own Flower `main`, and return the trained module and the outcome of the run.

    model: the module to train, or a function that makes it. until: '100updates', '600s', 'acc=0.9,600s'. config: sent
    to clients with every `train` message, as in Flower. evaluate: called with the module at the server every
    `evaluate_every` seconds; with ask_clients, clients receive `evaluate` messages then. done: called with the result.
    """
    server_strategy: Strategy = default_choice("strategy", strategy) if isinstance(strategy, str) else strategy
    sketcher = contract_of(server_strategy).sketcher
    if sketcher is not None and sketcher.signal != "parameters":
        raise ConfigError(
            f"{type(server_strategy).__name__} compares models on examples that all clients share: serve it with "
            "'offbeat serve', or use signal='parameters'"
        )
    module = model() if not isinstance(model, nn.Module) else model
    layout, vector = Layout.of(module), flatten(module)
    probe = None
    if sketcher is not None:
        probe = make_probe(sketcher, module, ClientData.separate([]), as_task(None, torch.int64), seed)
    world = World(model=vector, layout=layout, clients={}, seed=seed, probe=probe)
    binding = Binding(module)

    def score(model: Tensor) -> Mapping[str, float]:
        """Return the user's metrics of a model."""
        assert evaluate is not None
        binding.load(model)
        return evaluate(module.eval())

    nodes = FlowerTransport(grid, binding, dict(config or {}), ask_clients)
    engine = LiveEngine(
        server_strategy,
        world,
        nodes,
        until=parse_until(until),
        evaluate=None if evaluate is None else score,
        evaluate_every=evaluate_every,
        trace=Trace(),
        site_ids=SiteIds(max_names=sys.maxsize),  # Flower numbers its nodes, of which a simulation may have any number
        min_sites=min_nodes,
        timeouts=patience,
    )
    outcome = engine.run()
    binding.load(outcome.model)
    shown = ", ".join(f"{name} {value:.4f}" for name, value in outcome.metrics.items())
    log.info("%d updates, %d versions, %s: %s", outcome.updates, outcome.version, outcome.reason, shown)
    if done is not None:
        done(module, outcome)
    return module, outcome


def _make_app_function(run: Callable[Concatenate[Grid, Parameters], object]) -> Callable[Parameters, ServerApp]:
    """Return a function with the same parameters that makes a ServerApp."""
    serve_signature = signature(run)

    def as_server_app(*args: Parameters.args, **settings: Parameters.kwargs) -> ServerApp:
        """Make a Flower ServerApp that runs this strategy; the settings are those of `serve`."""
        serve_signature.bind(None, *args, **settings)  # raises TypeError now, not when the app is started
        app: ServerApp = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            """Serve the strategy over Flower's grid."""
            run(grid, *args, **settings)

        return app

    parameters = list(serve_signature.parameters.values())[1:]
    shown = serve_signature.replace(parameters=parameters, return_annotation=ServerApp)
    as_server_app.__signature__ = shown  # type: ignore[attr-defined]
    return as_server_app


as_server_app = _make_app_function(serve)


def as_client_app(
    train_fn: Callable[[Context], tuple[nn.Module, Data]], training: Training = Training(), loss: Loss | None = None
) -> ClientApp:
    """Make a Flower ClientApp that follows any strategy's rule.

    train_fn(context) returns (module, (x, y)), or (module, ((x, y), (x_test, y_test))) to answer `evaluate` messages
    too. `training` sets the defaults of local work: learning rate, batch size, steps or epochs. The memory of a rule is
    stored in the context while the node's SuperNode runs.
    """
    app: ClientApp = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Answer a `train` message with the trained model."""
        module, data = train_fn(context)
        content = _train_message(message.content, context, module, _split_data(data)[0], training, loss)
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        """Answer an `evaluate` message with metrics on the test examples."""
        module, data = train_fn(context)
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        pair = _split_data(data)[1]
        values = {} if pair is None else Evaluator(module, *pair, loss)(flatten(module))
        metrics = MetricRecord({**values, "num-examples": 0 if pair is None else len(pair[1])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _split_data(data: Data) -> tuple[Pair, Pair | None]:
    """Return training and test examples; None if there are no test examples."""
    first, second = data
    return (first, second) if isinstance(first, tuple) else ((first, second), None)  # type: ignore[return-value]


@one_thread()
def _train_message(
    content: RecordDict, context: Context, module: nn.Module, pair: Pair, training: Training, loss: Loss | None
) -> RecordDict:
    """Train the job of a Flower message and return the content of the reply."""
    if JOB not in content.config_records:
        raise ConfigError(
            "this client follows offbeat strategies only: make the server app with offbeat.flower.as_server_app"
        )
    job_fields: dict[str, Any] = json.loads(str(content.config_records[JOB]["job"]))
    module.load_state_dict(content.array_records["arrays"].to_torch_state_dict())
    layout, client = Layout.of(module), int(job_fields["client"])
    rule = None if job_fields["rule"] is None else from_fields(job_fields["rule"])
    extras = read_vectors(content, job_fields["extras"])
    job = Job(
        ticket=int(job_fields["ticket"]),
        client=client,
        index=int(job_fields["index"]),
        base=flatten(module),
        base_version=int(job_fields["version"]),
        work=LocalWork(**job_fields["work"], rule=rule, extras=extras),
        num_examples=len(pair[1]),
        memory=(memory := _load_memory(context, job_fields["accepted"])),
        seed=int(job_fields["seed"]),
    )
    began = time.perf_counter()
    result = Trainer(module, ClientData.separate({client: pair}), training, loss)(job)
    seconds = time.perf_counter() - began
    _store_memory(context, result, memory)
    Binding(module).load(result.local)
    counts = {TICKET: job.ticket, "num-examples": result.num_examples, "steps": result.steps}
    metrics = MetricRecord({**counts, "seconds": seconds})
    answer = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    for name in [] if rule is None else rule.uploads(layout):
        answer[f"{JOB}.{name}"] = ArrayRecord({"vector": Array(result.extras[name].numpy())})
    return answer


def _load_memory(context: Context, accepted: int | None) -> dict[str, Tensor]:
    """Return the rule's memory as of the last accepted update, and delete the other ones."""
    record = f"{MEMORY_RECORD}.{accepted}"
    for name in [name for name in context.state if name.startswith(f"{MEMORY_RECORD}.") and name != record]:
        del context.state[name]
    if accepted is None or record not in context.state.array_records:
        return {}
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in context.state.array_records[record].items()}


def _store_memory(context: Context, result: Result, before: dict[str, Tensor]) -> None:
    """Store the memory of a rule in the context under the ticket of the result."""
    if memory := result.memory or before:  # work without a rule keeps the earlier memory
        vectors = {name: Array(vector.numpy()) for name, vector in memory.items()}
        context.state[f"{MEMORY_RECORD}.{result.ticket}"] = ArrayRecord(vectors)
