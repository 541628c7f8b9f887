"""A Flower ClientApp as in Flower's PyTorch quickstart: nothing in it is offbeat's."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart import task

app = ClientApp()


def _net_and_data(message: Message, context: Context):
    net = task.Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    return net, task.load_data(partition, partitions, context.run_config["batch-size"])


@app.train()
def train(message: Message, context: Context) -> Message:
    net, (train_loader, _) = _net_and_data(message, context)
    loss = task.train(net, train_loader, context.run_config["local-epochs"], message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(train_loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, (_, test_loader) = _net_and_data(message, context)
    loss, accuracy = task.test(net, test_loader)
    metrics = MetricRecord({"loss": loss, "acc": accuracy, "num-examples": len(test_loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
