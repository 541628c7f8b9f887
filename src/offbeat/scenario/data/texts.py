"""Data sets of texts, as word numbers or as tokens of a pretrained tokenizer: 20 Newsgroups and AG News.

The texts themselves are available too, as `TwentyNews().texts()`.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.core.settings import DataFile, least
from offbeat.scenario.data.data_files import (
    Published,
    below_root,
    cannot_read,
    data_root,
    find_file,
    find_folder,
    read_text,
    truncated,
)
from offbeat.scenario.data.dataset import Dataset, every_fifth
from offbeat.scenario.scenario_settings import Count, ScenarioSettings

PADDING_NUMBER, UNKNOWN_NUMBER = 0, 1  # the most frequent word has number 2
Vocabulary = Annotated[int, least(3, "must be at least 3, for padding, the unknown word and one more")]
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts and labels of a data set."""

    train: list[str]
    y_train: Tensor
    test: list[str]
    y_test: Tensor
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a text; an apostrophe may be within a word."""
    return WORD.findall(text.lower())


def make_vocabulary(texts: Sequence[str], size: int) -> dict[str, int]:
    """Number the most frequent words; equally frequent words are in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: size - 2], UNKNOWN_NUMBER + 1)}


def number_texts(texts: Sequence[str], vocabulary: dict[str, int], length: int) -> Tensor:
    """Return the numbers (texts, length) of each text's first words, padded at the end."""
    x = torch.full((len(texts), length), PADDING_NUMBER, dtype=torch.int64)
    for row, text in enumerate(texts):
        words = split_words(text)[:length]
        numbers = [vocabulary.get(word, UNKNOWN_NUMBER) for word in words] or [UNKNOWN_NUMBER]
        x[row, : len(numbers)] = torch.tensor(numbers)
    return x


def text_dataset(name: str, texts: Texts, vocabulary: int, length: int, tokenizer: str | None) -> Dataset:
    """Convert texts to a data set; `tokenizer` is the folder of a pretrained tokenizer with its own vocabulary."""
    if tokenizer is None:
        known = make_vocabulary(texts.train, vocabulary)
        x_train, x_test = (number_texts(part, known, length) for part in (texts.train, texts.test))
        size = vocabulary  # not the number of words that occur: a model has the same size for every split
    else:
        x_train, x_test, size = _tokenize(tokenizer, texts, length)
    units = "most frequent words of the training texts" if tokenizer is None else f"pieces of {Path(tokenizer).name}"
    prepared = f"{length} numbers a text, of the {units}; 0 pads, {size} are known"
    names, notes, examples = texts.class_names, texts.notes, (x_train, texts.y_train, x_test, texts.y_test)
    return Dataset(name, *examples, len(names), class_names=names, vocabulary=size, prepared=prepared, notes=notes)


def _tokenize(folder: str, texts: Texts, length: int) -> tuple[Tensor, Tensor, int]:
    """Return the token numbers of the training and the test texts, and the size of the tokenizer's vocabulary."""
    path = below_root(folder)
    if not path.is_dir():
        cure = "put a pretrained tokenizer there (tokenizer.json or vocab.txt)"
        raise DataError(f"tokenizer = {folder!r}: {path} is not a folder: {cure}")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise DataError("a pretrained tokenizer needs the extra 'text': pip install 'offbeat[text]'") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"tokenizer {path}: {str(error).splitlines()[0]}") from None
    if tokenizer.pad_token_id != PADDING_NUMBER:
        raise DataError(f"tokenizer {path} pads with {tokenizer.pad_token_id}: the padding number must be 0")
    parts = [
        tokenizer(part, padding="max_length", truncation=True, max_length=length, return_tensors="pt")["input_ids"]
        for part in (texts.train, texts.test)
    ]
    return parts[0], parts[1], len(tokenizer)


# ---------------------------------------------------------------- 20 Newsgroups

NEWSGROUPS_PAGE = "http://qwone.com/~jason/20Newsgroups/"
NEWSGROUPS_ARCHIVE = Published(
    name="20news-bydate.tar.gz",
    urls=(f"{NEWSGROUPS_PAGE}20news-bydate.tar.gz", "https://ndownloader.figshare.com/files/5975967"),
    checksum="8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",  # from scikit-learn
    max_unpacked=100_000_000,
)
NEWSGROUPS_TRAIN, NEWSGROUPS_TEST = "20news-bydate-train", "20news-bydate-test"


@dataclass(frozen=True, kw_only=True)
class TwentyNews(ScenarioSettings):
    """Newsgroup posts by date: 18846 posts, 20 groups, as word numbers (files: 20news/20news-bydate-train and -test).

    Inputs (length,) are the numbers of a post's first words. The split by date is the published one. The archive is
    downloaded.
    """

    vocabulary: Vocabulary = 20000  # words, including padding and the unknown word
    length: Count = 200  # words of a post
    headers: bool = False  # keep header lines such as From and Organization, which reveal the group
    tokenizer: DataFile | None = None  # folder of a pretrained tokenizer that replaces words (extra text)

    def load(self) -> Dataset:
        """Load the data set."""
        return text_dataset("20news", self.texts(), self.vocabulary, self.length, self.tokenizer)

    def texts(self) -> Texts:
        """Return the posts of all newsgroups."""
        home = find_folder("20news", (NEWSGROUPS_TRAIN, NEWSGROUPS_TEST), NEWSGROUPS_ARCHIVE, NEWSGROUPS_PAGE)
        train_folder, test_folder = home / NEWSGROUPS_TRAIN, home / NEWSGROUPS_TEST
        groups = sorted(path.name for path in train_folder.iterdir() if path.is_dir())
        if not groups:
            raise DataError(f"{train_folder} has no newsgroups: expected a folder for each")
        return Texts(*self._read_part(train_folder, groups), *self._read_part(test_folder, groups), tuple(groups))

    def _read_part(self, folder: Path, groups: list[str]) -> tuple[list[str], Tensor]:
        """Return the posts and the labels of the training or the test part."""
        texts, labels = [], []
        for label, group in enumerate(groups):
            if not (folder / group).is_dir():
                raise DataError(f"{folder / group} is missing: put the posts of that newsgroup there")
            for path in sorted((folder / group).iterdir()):
                try:
                    text = path.read_bytes().decode("latin1")  # posts of 1993 do not name their encoding
                except OSError as error:
                    raise cannot_read(path, error) from None
                texts.append(text if self.headers else text.replace("\r\n", "\n").partition("\n\n")[2])
                labels.append(label)
        return texts, torch.tensor(labels)


# ---------------------------------------------------------------- AG News

AG_NEWS_PAGE = "http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html"
AG_NEWS_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
AG_NEWS_TRAIN_MD5, AG_NEWS_TEST_MD5 = "b1a00f826fdfbd249f79597b59e1dc12", "d52ea96a97a2d943681189a97654912d"
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
NO_TRAIN_FILE = (
    "train.csv is missing: every fifth text of a class in test.csv is for the test, the others are for training"
)


@dataclass(frozen=True, kw_only=True)
class AgNews(ScenarioSettings):
    """AG News: 127600 short news, 4 classes, as word numbers (files: ag_news/train.csv and test.csv, or the second).

    Inputs (length,) are the numbers of the first words of title and description. The CSV files are those of the
    character-level CNN paper; they are downloaded. Without train.csv, every fifth text of test.csv is for the test.
    """

    vocabulary: Vocabulary = 20000  # words, including padding and the unknown word
    length: Count = 64  # words of a text
    tokenizer: DataFile | None = None  # folder of a pretrained tokenizer that replaces words (extra text)

    def load(self) -> Dataset:
        """Load the data set."""
        return text_dataset("ag_news", self.texts(), self.vocabulary, self.length, self.tokenizer)

    def texts(self) -> Texts:
        """Return the title and description of each news article."""
        test, y_test = _read_ag_news("test.csv", AG_NEWS_TEST_MD5)
        try:
            train, y_train = _read_ag_news("train.csv", AG_NEWS_TRAIN_MD5)
        except DataError:
            if (data_root() / "ag_news" / "train.csv").exists():  # it is damaged, not missing
                raise
            is_test = every_fifth(y_test)
            train, test = (list(compress(test, part.tolist())) for part in (~is_test, is_test))
            return Texts(train, y_test[~is_test], test, y_test[is_test], AG_NEWS_CLASSES, (NO_TRAIN_FILE,))
        return Texts(train, y_train, test, y_test, AG_NEWS_CLASSES)


def _read_ag_news(name: str, checksum: str | None) -> tuple[list[str], Tensor]:
    """Return the texts and the labels of a CSV file of AG News."""
    path = find_file("ag_news", (name,), checksum, (f"{AG_NEWS_URL}{name}",), AG_NEWS_PAGE)
    texts, labels = [], []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(read_text(path), newline=""), strict=True), 1):
            if len(row) != 3:
                raise truncated(f"{path} row {number} has {len(row)} cells, expected class, title, description")
            if row[0] not in ("1", "2", "3", "4"):
                raise DataError(f"{path} row {number}: class {row[0]!r} is out of range: 1 to 4")
            texts.append(f"{row[1]} {row[2]}".replace("\\", " "))  # a backslash replaces each line end
            labels.append(int(row[0]) - 1)
    except csv.Error as error:
        raise truncated(f"{path} is not a complete CSV file ({error})") from None
    if not texts:
        raise DataError(f"{path} is empty")
    return texts, torch.tensor(labels)
