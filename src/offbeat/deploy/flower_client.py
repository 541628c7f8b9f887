"""A job out of a Flower message, and its result into one: for clients that follow a strategy's rule."""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict
from torch import Tensor, nn

from offbeat.core.errors import ConfigError
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import LocalWork
from offbeat.core.threads import one_thread
from offbeat.core.vector import Binding, Layout, flatten
from offbeat.deploy import rule_codec
from offbeat.deploy.flower_nodes import JOB, TICKET
from offbeat.training.client_data import ClientData, Pair
from offbeat.training.tasks import Loss
from offbeat.training.trainer import Trainer, Training

MEMORY = "offbeat-memory"


@one_thread()
def trained(
    content: RecordDict, context: Context, module: nn.Module, pair: Pair, training: Training, loss: Loss | None
) -> RecordDict:
    if JOB not in content.config_records:
        raise ConfigError("this client follows strategies of offbeat: use offbeat.flower.as_server_app")
    told: dict[str, Any] = json.loads(str(content.config_records[JOB]["job"]))
    module.load_state_dict(content.array_records["arrays"].to_torch_state_dict())
    layout, client = Layout.of(module), int(told["client"])
    rule = None if told["rule"] is None else rule_codec.of_fields(told["rule"])
    extras = {
        name: torch.from_numpy(content.array_records[f"{JOB}.{name}"]["vector"].numpy().copy())
        for name in told["extras"]
    }
    job = Job(
        ticket=int(told["ticket"]),
        client=client,
        index=int(told["index"]),
        base=flatten(module),
        base_version=int(told["version"]),
        work=LocalWork(**told["work"], rule=rule, extras=extras),
        num_examples=len(pair[1]),
        memory=(memory := _remembered(context, told["accepted"])),
        seed=int(told["seed"]),
    )
    began = time.perf_counter()
    result = Trainer(module, ClientData.own({client: pair}), training, loss)(job)
    seconds = time.perf_counter() - began
    _remember(context, result, memory)
    Binding(module).put(result.local)
    told = {TICKET: job.ticket, "num-examples": result.num_examples, "steps": result.steps, "seconds": seconds}
    answer = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord(told)})
    for name in [] if rule is None else rule.uploads(layout):
        answer[f"{JOB}.{name}"] = ArrayRecord({"vector": Array(result.extras[name].numpy())})
    return answer


def _remembered(context: Context, accepted: int | None) -> dict[str, Tensor]:
    """What the rule kept with the last update that was accepted."""
    held = f"{MEMORY}.{accepted}"
    for name in [name for name in context.state if name.startswith(f"{MEMORY}.") and name != held]:
        del context.state[name]
    if accepted is None or held not in context.state.array_records:
        return {}
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in context.state.array_records[held].items()}


def _remember(context: Context, result: Result, before: dict[str, Tensor]) -> None:
    if memory := result.memory or before:  # work without a rule leaves what there was
        kept = {name: Array(vector.numpy()) for name, vector in memory.items()}
        context.state[f"{MEMORY}.{result.ticket}"] = ArrayRecord(kept)
