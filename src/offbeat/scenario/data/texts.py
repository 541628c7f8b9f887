"""Texts as numbers: words of a vocabulary made from the training texts, or the pieces of a pretrained tokenizer.

The texts themselves are there too, `TwentyNews().texts()`, for models that read them in another way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import DataError, require
from offbeat.scenario.data.data_root import below_root
from offbeat.scenario.data.dataset import Dataset

PADDING, UNKNOWN = 0, 1  # the first words have number 2
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


@dataclass(frozen=True, eq=False)
class Texts:
    train: list[str]
    y_train: Tensor
    test: list[str]
    y_test: Tensor
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def make_vocabulary(texts: Sequence[str], size: int) -> dict[str, int]:
    """The most frequent words, each with its number; words as frequent as each other in the order of the alphabet."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: size - 2], UNKNOWN + 1)}


def numbered(texts: Sequence[str], vocabulary: dict[str, int], length: int) -> Tensor:
    """(texts, length): the first words of each, padded at the end."""
    x = torch.full((len(texts), length), PADDING, dtype=torch.int64)
    for row, text in enumerate(texts):
        found = [vocabulary.get(word, UNKNOWN) for word in words(text)[:length]] or [UNKNOWN]
        x[row, : len(found)] = torch.tensor(found)
    return x


def check_settings(what: str, vocabulary: int, length: int) -> None:
    fewest = "padding, the unknown word and at least one more, 3 or more"
    require(vocabulary >= 3, f"{what} vocabulary = {vocabulary}: {fewest}")
    require(length >= 1, f"{what} length = {length}: at least 1 word is needed")


def as_dataset(name: str, texts: Texts, vocabulary: int, length: int, tokenizer: str | None) -> Dataset:
    """The texts as a data set; `tokenizer` is the folder of a pretrained one, and then the vocabulary is its own."""
    if tokenizer is None:
        known = make_vocabulary(texts.train, vocabulary)
        x_train, x_test = (numbered(part, known, length) for part in (texts.train, texts.test))
        size = vocabulary  # not what was found: a model has the same size for every split
    else:
        x_train, x_test, size = _pretrained(tokenizer, texts, length)
    names, notes = texts.class_names, texts.notes
    pieces = "most frequent words of the training texts" if tokenizer is None else f"pieces of {Path(tokenizer).name}"
    how = f"{length} numbers a text, of the {pieces}; 0 pads, {size} are known"
    more: dict[str, Any] = {"class_names": names, "vocabulary": size, "prepared": how, "notes": notes}
    return Dataset(name, x_train, texts.y_train, x_test, texts.y_test, len(names), **more)


def _pretrained(folder: str, texts: Texts, length: int) -> tuple[Tensor, Tensor, int]:
    path = below_root(folder)
    if not path.is_dir():
        please = "put a pretrained tokenizer there (tokenizer.json or vocab.txt)"
        raise DataError(f"tokenizer = {folder!r}: {path} is no folder: {please}")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise DataError("a pretrained tokenizer needs the extra 'text': pip install 'offbeat[text]'") from None
    try:
        made = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"tokenizer {path}: {str(error).splitlines()[0]}") from None
    if made.pad_token_id != PADDING:
        raise DataError(f"tokenizer {path} pads with {made.pad_token_id}: number 0 has to be padding")
    parts = [
        made(part, padding="max_length", truncation=True, max_length=length, return_tensors="pt")["input_ids"]
        for part in (texts.train, texts.test)
    ]
    return parts[0], parts[1], len(made)
