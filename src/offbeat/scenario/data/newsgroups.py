"""20 Newsgroups, the version split by date, in the folders it is published in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from offbeat.core.errors import DataError
from offbeat.core.settings import DataFile
from offbeat.scenario.data.data_root import Published, find_folder
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.texts import Texts, as_dataset, check_settings

PAGE = "http://qwone.com/~jason/20Newsgroups/"
ARCHIVE = Published(
    name="20news-bydate.tar.gz",
    urls=(f"{PAGE}20news-bydate.tar.gz", "https://ndownloader.figshare.com/files/5975967"),
    checksum="8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",  # as scikit-learn has it
    most=100_000_000,
)
TRAIN, TEST = "20news-bydate-train", "20news-bydate-test"


@dataclass(frozen=True, kw_only=True)
class TwentyNews:
    """20 Newsgroups by date: 18846 posts, 20 groups, as word numbers (files: 20news/20news-bydate-train and -test)."""

    vocabulary: int = 20000  # words, padding and the unknown word counted
    length: int = 200  # words of a post
    headers: bool = False  # keep From, Organization and so on, which give the group away
    tokenizer: DataFile | None = None  # folder of a pretrained tokenizer instead of words (extra text)

    def __post_init__(self) -> None:
        check_settings("20news", self.vocabulary, self.length)

    def load(self) -> Dataset:
        return as_dataset("20news", self.texts(), self.vocabulary, self.length, self.tokenizer)

    def texts(self) -> Texts:
        """The posts themselves."""
        home = find_folder("20news", (TRAIN, TEST), ARCHIVE, PAGE)
        groups = sorted(path.name for path in (home / TRAIN).iterdir() if path.is_dir())
        if not groups:
            raise DataError(f"{home / TRAIN} holds no newsgroups: one folder each is expected")
        train, y_train = self._posts(home / TRAIN, groups)
        test, y_test = self._posts(home / TEST, groups)
        return Texts(train, torch.tensor(y_train), test, torch.tensor(y_test), tuple(groups))

    def _posts(self, folder: Path, groups: list[str]) -> tuple[list[str], list[int]]:
        texts, labels = [], []
        for label, group in enumerate(groups):
            if not (folder / group).is_dir():
                raise DataError(f"{folder / group} is missing: put the posts of that newsgroup there")
            for path in sorted((folder / group).iterdir()):
                texts.append(self._read(path))
                labels.append(label)
        return texts, labels

    def _read(self, path: Path) -> str:
        try:
            text = path.read_bytes().decode("latin1")  # posts of 1993 say nothing about their encoding
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        return text if self.headers else text.replace("\r\n", "\n").partition("\n\n")[2]
