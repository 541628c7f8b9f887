"""Asynchronous federated learning for PyTorch that you can read, simulate and deploy.

    import offbeat
    result = offbeat.simulate(model, clients=[(x, y), ...], strategy=offbeat.FedBuff(k=5), until="3600s")
    table = offbeat.compare(model, clients, strategies=["fedavg", offbeat.FedBuff(k=5)], seeds=3, until="3600s")

`__init__.pyi` lists the public names. They are imported when they are first used.
"""

from offbeat._lazy import lazy_exports

__version__ = "0.1.0.dev0"

__getattr__, __dir__, _names = lazy_exports(__name__, __file__)
__all__ = sorted([*_names, "__version__"])
