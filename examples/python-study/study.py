"""A regression at eight sites, in two worlds: everybody there, and two thirds of the time away."""

import torch
from sklearn.datasets import load_diabetes
from torch.utils.data import TensorDataset

import offbeat
from offbeat.scenario.availability import Churn

NAMES = ["aarau", "bern", "chur", "davos", "egg", "flims", "genf", "horgen"]
SECONDS = [10, 12, 15, 20, 30, 40, 60, 120]  # what a job takes at each site


def sites() -> tuple[dict[str, TensorDataset], TensorDataset]:
    """Patients dealt by age, so that sites differ; every fifth is for the test."""
    x, y = (torch.tensor(array, dtype=torch.float32) for array in load_diabetes(return_X_y=True, scaled=True))
    x, y = x * 20, ((y - 150) / 80).unsqueeze(1)
    tested = torch.arange(len(x)) % 5 == 0
    order = x[~tested, 0].argsort()
    parts = {
        name: TensorDataset(x[~tested][at], y[~tested][at]) for name, at in zip(NAMES, order.chunk(8), strict=True)
    }
    return parts, TensorDataset(x[tested], y[tested])


def net(seed: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


clients, test = sites()
methods = {"FedAvg": offbeat.FedAvg(), "FedBuff, 3": offbeat.FedBuff(k=3), "alone": offbeat.Local()}
worlds = {"there": None, "away": Churn(up=100, down=200)}
for world, availability in worlds.items():
    table = offbeat.compare(
        net, clients, methods, seeds=2, delays=SECONDS, availability=availability, test=test, until="1200s",
        training=offbeat.Training(lr=0.05, batch=16), name=world, out=f"runs/{world}",
    )  # fmt: skip
    print(f"sites that are {world}")
    print(table)
    table.plot(f"{world}.pdf")
    table.page(f"{world}.html")
