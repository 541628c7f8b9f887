"""The keyword options that `simulate` and `compare` share, and the runs that they define."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypedDict, TypeVar, cast

from torch import nn

from offbeat.api import arguments
from offbeat.core.errors import unknown_name
from offbeat.core.protocol import Strategy
from offbeat.engine import Target, Until
from offbeat.experiment.scripted import Examples, ScriptedRun, make_placeholder, read_client_datasets
from offbeat.experiment.spec import Experiment
from offbeat.scenario import Always, Availability, Fault, Instant, Network, Static, Stream
from offbeat.scenario.delays import Delays
from offbeat.training import Loss, Task, Training

F = TypeVar("F", bound=Callable[..., object])

Clients = Sequence[Examples] | Mapping[str, Examples] | Mapping[int, Examples]
ClientDelays = Delays | float | Sequence[float] | Mapping[str, float]


class WorldKeywords(TypedDict, total=False):
    """Give type checkers the types of the fields of `WorldOptions`; a test compares the two."""

    delays: ClientDelays
    network: Network | None
    availability: Availability | None
    faults: Fault | Sequence[Fault]
    streaming: Stream | None
    until: Until | str | float
    target: Target | str | None
    test: Examples | None
    tests: Clients | None
    training: Training | None
    loss: Task | Loss | None
    evaluate_every: float | None
    max_norm: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class WorldOptions:
    """Describe the world of a simulation: how clients behave, train and are evaluated, and when runs end.

    delays: A delay law from `offbeat.scenario.delays`, or seconds per job: one number, or one for each client.
    network: A law from `offbeat.scenario.network` for the time that sending models takes; by default none.
    availability: A law from `offbeat.scenario.availability` for when clients are reachable; by default always.
    faults: Laws from `offbeat.scenario.faults` for what goes wrong.
    streaming: A law from `offbeat.scenario.streaming` if data arrives over time. It arrives in the order given,
        unless the classes drift. By default all data is there from the start.
    until: When a run ends: '3600s', '500updates' or 'acc=0.9,3600s'.
    target: What "time to target" means, such as 'acc=0.9'; it does not end the run.
    test: Examples to evaluate the model on.
    tests: Test examples of each client, in the same form as `clients`. Each client is evaluated on its own; without
        `test`, the metrics are means over clients. Without `test` and `tests`, the clients' training data is used.
    training: Optimizer, learning rate, batch size and number of steps; see `offbeat.Training`.
    loss: A function (outputs, labels) -> scalar or a task. By default cross entropy for whole-number labels and
        squared error for real ones.
    evaluate_every: Virtual seconds between evaluations; by default a fiftieth of the run.
    max_norm: The admission gate refuses updates that moved the model further than this.
    """

    delays: ClientDelays = 60.0
    network: Network | None = None
    availability: Availability | None = None
    faults: Fault | Sequence[Fault] = ()
    streaming: Stream | None = None
    until: Until | str | float = "3600s"
    target: Target | str | None = None
    test: Examples | None = None
    tests: Clients | None = None
    training: Training | None = None
    loss: Task | Loss | None = None
    evaluate_every: float | None = None
    max_norm: float | None = None

    def build_runs(
        self, name: str, clients: Clients, methods: Mapping[str, Strategy], modules: Mapping[int, nn.Module]
    ) -> dict[tuple[str, int], ScriptedRun]:
        """Validate the options and return one run for each method (by label) and seed (with its initial model)."""
        dtype = arguments.parameter_dtype(next(iter(modules.values())))
        datasets = read_client_datasets(clients, self.test, self.tests, dtype)
        loss = arguments.check_loss(self.loss)
        placeholders = {
            "data": make_placeholder("own", {"examples": sum(len(y) for _, y in datasets.train.values())}),
            "partition": make_placeholder("given"),
        }
        if loss is not None:
            placeholders["loss"] = make_placeholder(getattr(loss, "__name__", type(loss).__name__))
        experiment = Experiment(
            name=arguments.check_text(name, "name", "my study"),
            clients=len(datasets.train),
            delays=arguments.check_delays(self.delays, datasets),
            network=arguments.check_law(self.network, "network", Instant()),
            availability=arguments.check_law(self.availability, "availability", Always()),
            faults=arguments.check_faults(self.faults),
            streaming=arguments.check_law(self.streaming, "streaming", Static()),
            training=arguments.check_training(self.training),
            until=arguments.check_until(self.until),
            target=arguments.check_target(self.target),
            evaluate="test" if datasets.tests is None or datasets.test is not None else "clients",
            evaluate_every=arguments.check_positive(self.evaluate_every, "evaluate_every"),
            max_norm=arguments.check_positive(self.max_norm, "max_norm"),
            **placeholders,
        )
        models = {
            seed: make_placeholder(
                type(module).__name__, {"parameters": sum(parameter.numel() for parameter in module.parameters())}
            )
            for seed, module in modules.items()
        }
        return {
            (label, seed): ScriptedRun(
                replace(experiment, strategy=strategy, seed=seed, model=models[seed]), module, datasets, loss
            )
            for label, strategy in methods.items()
            for seed, module in modules.items()
        }


def accept_world_options(before: str) -> Callable[[F], F]:
    """Show the fields of `WorldOptions` in a function's signature and help, in place of ``**options``.

    They are inserted before the parameter `before`. Unknown keywords are rejected with the nearest right name.
    """

    def decorate(function: F) -> F:
        """Replace the signature and the docstring of a function."""
        declared = inspect.signature(function)
        parameters = [p for p in declared.parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in fields(WorldOptions)
        ]
        place = [parameter.name for parameter in parameters].index(before)
        signature = declared.replace(parameters=[*parameters[:place], *options, *parameters[place:]])

        @functools.wraps(function)
        def checked(*args: object, **keywords: object) -> object:
            """Call the function, unless a keyword is unknown."""
            for name in keywords:
                if name not in signature.parameters:
                    hint = unknown_name("keyword argument", name, signature.parameters)
                    raise TypeError(f"{function.__name__}(): {hint}")
            return function(*args, **keywords)

        setattr(checked, "__signature__", signature)  # noqa: B010 (mypy knows no such attribute of functions)
        described = inspect.cleandoc(WorldOptions.__doc__ or "").partition("\n\n")[2]
        checked.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n{described}"
        return cast(F, checked)

    return decorate
