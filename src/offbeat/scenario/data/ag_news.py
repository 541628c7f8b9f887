"""AG News, in the CSV files of the character-level CNN paper (class, title, description)."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.core.settings import DataFile
from offbeat.scenario.data.csv_tables import read_text
from offbeat.scenario.data.data_root import data_root, find_file
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.fixed_test_split import every_fifth
from offbeat.scenario.data.texts import Texts, as_dataset, check_settings

PAGE = "http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html"
HOME = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
TRAIN_MD5, TEST_MD5 = "b1a00f826fdfbd249f79597b59e1dc12", "d52ea96a97a2d943681189a97654912d"
CLASSES = ("World", "Sports", "Business", "Sci/Tech")


@dataclass(frozen=True, kw_only=True)
class AgNews:
    """AG News: 127600 short news, 4 classes, as word numbers (files: ag_news/train.csv and test.csv, or the second)."""

    vocabulary: int = 20000  # words, padding and the unknown word counted
    length: int = 64  # words of a text
    tokenizer: DataFile | None = None  # folder of a pretrained tokenizer instead of words (extra text)

    def __post_init__(self) -> None:
        check_settings("ag_news", self.vocabulary, self.length)

    def load(self) -> Dataset:
        return as_dataset("ag_news", self.texts(), self.vocabulary, self.length, self.tokenizer)

    def texts(self) -> Texts:
        """The news themselves: title and description."""
        test, y_test = _read(find_file("ag_news", ("test.csv",), TEST_MD5, (f"{HOME}test.csv",), PAGE))
        try:
            train_file = find_file("ag_news", ("train.csv",), TRAIN_MD5, (f"{HOME}train.csv",), PAGE)
        except DataError:
            if (data_root() / "ag_news" / "train.csv").exists():  # damaged is not the same as missing
                raise
            return _divided(test, torch.tensor(y_test))
        train, y_train = _read(train_file)
        return Texts(train, torch.tensor(y_train), test, torch.tensor(y_test), CLASSES)


def _divided(texts: list[str], y: Tensor) -> Texts:
    """The texts of test.csv as a small data set of their own."""
    held = every_fifth(y)
    train, test = ([texts[i] for i in part.nonzero().squeeze(1).tolist()] for part in (~held, held))
    how = "every fifth text of a class in test.csv is for the test, the others are for training"
    return Texts(train, y[~held], test, y[held], CLASSES, (f"train.csv is missing: {how}",))


def _read(path: Path) -> tuple[list[str], list[int]]:
    texts, labels = [], []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(read_text(path), newline=""), strict=True), 1):
            if len(row) != 3:
                found = f"{len(row)} cells, expected class, title, description"
                raise DataError(f"{path} row {number} has {found}: it is cut short or damaged")
            if row[0] not in ("1", "2", "3", "4"):
                raise DataError(f"{path} row {number}: class {row[0]!r} is out of range: 1 to 4")
            texts.append(f"{row[1]} {row[2]}".replace("\\", " "))  # a backslash stands where a line ended
            labels.append(int(row[0]) - 1)
    except csv.Error as error:
        raise DataError(f"{path} is no whole CSV ({error}): it is cut short or damaged") from None
    if not texts:
        raise DataError(f"{path} is empty")
    return texts, labels
