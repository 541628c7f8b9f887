"""Data sets, already divided into training and test examples."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from offbeat.core.errors import ConfigError
from offbeat.core.threads import one_thread
from offbeat.scenario.data.ag_news import AgNews
from offbeat.scenario.data.air_quality import BeijingAir, KddAir
from offbeat.scenario.data.cifar import Cifar10, Cifar100
from offbeat.scenario.data.data_root import data_root
from offbeat.scenario.data.dataset import Dataset, Source
from offbeat.scenario.data.digits import Digits
from offbeat.scenario.data.extrasensory import ExtraSensory
from offbeat.scenario.data.fitrec import FitRec
from offbeat.scenario.data.har import UciHar
from offbeat.scenario.data.heart_disease import HeartDisease
from offbeat.scenario.data.isic import Isic2019
from offbeat.scenario.data.ixi import Ixi
from offbeat.scenario.data.mnist import FashionMnist, Mnist
from offbeat.scenario.data.newsgroups import TwentyNews
from offbeat.scenario.data.synthetic import Synthetic
from offbeat.scenario.data.synthetic_stand_in import StandIn
from offbeat.scenario.data.tcga import TcgaBrca
from offbeat.scenario.data.tiny_imagenet import TinyImageNet
from offbeat.scenario.data.user_data import Npz, from_dataset, from_npz
from offbeat.scenario.names import find

__all__ = ["DATASETS", "Dataset", "Source", "from_dataset", "from_npz", "load", "source"]

DATASETS: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "tiny-imagenet": TinyImageNet,
    "uci-har": UciHar,
    "20news": TwentyNews,
    "ag_news": AgNews,
    "beijing-air": BeijingAir,
    "kdd-air": KddAir,
    "fitrec": FitRec,
    "extrasensory": ExtraSensory,
    "heart-disease": HeartDisease,
    "tcga-brca": TcgaBrca,
    "ixi": Ixi,
    "isic2019": Isic2019,
    "synthetic": Synthetic,
    "stand-in": StandIn,
    "npz": Npz,
}


def source(given: Source | str) -> Source:
    """The choice meant: a name alone is that data set with its defaults."""
    if not isinstance(given, str):
        return given
    try:
        return find("data set", DATASETS, given)()
    except TypeError:
        write = f"data: {{name: {given}, …}}"
        raise ConfigError(f"data set {given!r} has settings that must be given: write {write}") from None


def load(given: Source | str) -> Dataset:
    """The data set. The last one stays in memory: a comparison asks for the same one again and again."""
    return _load(source(given), data_root())


@lru_cache(maxsize=1)
@one_thread()  # whoever's data it is
def _load(chosen: Source, root: Path) -> Dataset:
    return chosen.load()
