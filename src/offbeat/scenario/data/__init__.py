"""Data sets with a training and a test part: DATASETS lists them by name, `load` loads one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from offbeat.core.errors import ConfigError
from offbeat.core.threads import one_thread
from offbeat.scenario.data.activity import ExtraSensory, UciHar
from offbeat.scenario.data.air_quality import BeijingAir, KddAir
from offbeat.scenario.data.built_in import Digits, StandIn, Synthetic
from offbeat.scenario.data.cifar import Cifar10, Cifar100
from offbeat.scenario.data.clinical import HeartDisease, Ixi, TcgaBrca
from offbeat.scenario.data.data_files import data_root
from offbeat.scenario.data.data_files import expand_path as expand_path
from offbeat.scenario.data.data_files import named_root as named_root
from offbeat.scenario.data.dataset import Dataset, DataSource
from offbeat.scenario.data.fitrec import FitRec
from offbeat.scenario.data.images import Isic2019, TinyImageNet
from offbeat.scenario.data.mnist import FashionMnist, Mnist
from offbeat.scenario.data.texts import AgNews, TwentyNews
from offbeat.scenario.data.user_data import Npz, from_dataset, from_npz
from offbeat.scenario.data.user_data import dataset_from_function as dataset_from_function
from offbeat.scenario.scenario_settings import find_entry, former_names

__all__ = [
    "DATASETS", "Dataset", "DataSource", "from_dataset", "from_npz", "load", "source", "ExtraSensory", "UciHar",
    "BeijingAir", "KddAir", "Digits", "StandIn", "Synthetic", "Cifar10", "Cifar100", "HeartDisease", "Ixi",
    "TcgaBrca", "FitRec", "Isic2019", "TinyImageNet", "FashionMnist", "Mnist", "AgNews", "TwentyNews", "Npz",
]  # fmt: skip

DATASETS: dict[str, type[DataSource]] = {
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


def source(choice: DataSource | str) -> DataSource:
    """Return the data source; a name alone means that data set with its defaults."""
    if not isinstance(choice, str):
        return choice
    try:
        return find_entry("data set", DATASETS, choice)()
    except TypeError:
        raise ConfigError(f"data set {choice!r} needs settings: write data: {{name: {choice}, …}}") from None


def load(choice: DataSource | str) -> Dataset:
    """Load the data set; the last one stays in memory, because the runs of a comparison load the same one."""
    return _load(source(choice), data_root())


@lru_cache(maxsize=1)
@one_thread()  # also for data sets of users
def _load(chosen: DataSource, root: Path) -> Dataset:
    """Load the data set; `root` is part of the key of the cache."""
    return chosen.load()


__getattr__ = former_names(__name__, {"Source": "DataSource"})
