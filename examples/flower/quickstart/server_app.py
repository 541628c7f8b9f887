"""All that is offbeat's in this app."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from offbeat import flower
from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    _, outcome = flower.serve(
        grid, config["strategy"], Net, until=config["until"], config={"lr": config["lr"]}, ask_clients=True, min_nodes=2
    )
    accuracy = outcome.metrics["acc"]  # the mean over the clients
    print(f"{outcome.updates} updates, {outcome.version} versions, accuracy {accuracy:.3f}")
