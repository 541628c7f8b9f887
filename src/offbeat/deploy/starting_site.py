"""NAME: the model and the data of one site. Nothing of the data leaves it: models do, and how many examples there are.

    offbeat join --check --data FILE                   loads the data and trains one step, without joining
    offbeat join --server HOST:PORT --data FILE        takes part

As it stands it fits 'offbeat serve quickstart': put your own in place of what is below.
"""

import torch
from torch import Tensor, nn

# Three sites share the digits that come with scikit-learn: each takes another part.
PART, OF = 0, 3


def model() -> nn.Module:
    """The same layers, with the same names, as at every other site and at the server; weights are sent."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def load_data() -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs and labels, one label an input. "test" may be left out: the site is then not asked how good models are."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1)[PART::OF]
    y = torch.tensor(bunch.target)[PART::OF]
    x = (x / 16 - 0.3) / 0.38  # about 0 on average, about 1 far from it: everybody scales alike
    test = len(y) // 5
    return {"train": (x[test:], y[test:]), "test": (x[:test], y[:test])}


# def loss(outputs: Tensor, y: Tensor) -> Tensor:
#     """What is descended; without it cross entropy for whole-number labels, squared error for real ones."""
#     return nn.functional.cross_entropy(outputs, y, label_smoothing=0.1)


# def num_examples() -> int:
#     """For data that grows: asked often, so it should be quick. More than before, and load_data() is called again;
#     what was there comes first then, as before."""
#     return 1437
